"""The parameters of a chain at several of its passes: Gibbs's draws, or Monte Carlo EM's estimate after each pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from semisight.errors import UserError
from semisight.model.decoder import Decoder
from semisight.model.heads.labels import BayesianSVM

Snapshot = tuple[dict[str, Tensor], dict[str, Tensor] | None]  # of decoder and head, as in their state_dict


@dataclass(frozen=True)
class ParameterSamples:
    """Of all parameters, stacked: name in the module's state_dict -> [n_samples, ...]."""

    decoder: Mapping[str, Tensor]
    head: Mapping[str, Tensor] | None = None

    def __len__(self) -> int:
        return len(next(iter(self.decoder.values()), ()))

    def part(self, which: slice) -> "ParameterSamples":
        """Some of them, in their order."""
        head = None if self.head is None else {name: values[which] for name, values in self.head.items()}
        return ParameterSamples({name: values[which] for name, values in self.decoder.items()}, head)

    def load(self, number: int, decoder: Decoder, head: BayesianSVM | None = None) -> None:
        """Puts one of them into a decoder, and into a head where one is given."""
        decoder.load_state_dict({name: values[number] for name, values in self.decoder.items()})
        if head is None:
            return
        if self.head is None:
            raise UserError("these samples come from a chain without labels: they hold no label head to load")
        head.load_state_dict({name: values[number] for name, values in self.head.items()})


def snapshot(decoder: Decoder, head: BayesianSVM | None) -> Snapshot:
    return _copied(decoder), None if head is None else _copied(head)


def stacked(kept: Sequence[Snapshot]) -> ParameterSamples:
    decoders, heads = [decoder for decoder, _ in kept], [head for _, head in kept]
    head = None if heads[0] is None else {k: torch.stack([h[k] for h in heads if h]) for k in heads[0]}
    return ParameterSamples({k: torch.stack([d[k] for d in decoders]) for k in decoders[0]}, head)


def _copied(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().cpu().clone() for name, value in module.state_dict().items()}
