"""Reference [8] and section 5.1: Monte Carlo EM on the library's own decoder and label head.

    E-step   z and s of every image are sampled by Gibbs sweeps from where the last E-step left them, lambda with them
    M-step   D, image bias, alpha0 and beta rise in the average log-joint of the sampled images and the prior

m_step="exact"      all images, then the maximiser of every parameter given the others (an ECM step): with exact
                    expectations the posterior never falls. For sets that can be swept many times.
m_step="gradient"   batch by batch, one Adam step on the sampled log-joint, by Fisher's identity an estimate of the
                    gradient of log p(X, y | parameters): the form of [8] for large sets. beta would need thousands
                    of such steps, and is maximised after each pass instead, for the last draw of every image
                    (beta_mode.py).

At test the codes come from `map_codes` (top_map.py).
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from semisight.errors import UserError
from semisight.sampling import saving
from semisight.sampling.beta_mode import maximise_beta
from semisight.sampling.chain import Chain, check_counts
from semisight.sampling.dictionaries import Completed
from semisight.sampling.dictionaries_above import Solver
from semisight.sampling.latents import (
    Latents,
    SweepOptions,
    slices,
    sweep_latents,
)
from semisight.sampling.parameters import Priors, maximise_parameters

MStep = Literal["exact", "gradient"]


@dataclass(frozen=True)
class MCEMConfig:
    iterations: int = 50  # passes over the images
    burn_in: int = 0  # sweeps thrown away at every E-step; chains go on between E-steps
    n_samples: int = 1  # sweeps kept at every E-step
    m_step: MStep = "gradient"
    rate: float = 2e-3  # of Adam; falls to zero over the iterations
    seed: int = 0
    priors: Priors = field(default_factory=Priors)
    options: SweepOptions = field(default_factory=SweepOptions)
    solver: Solver = field(default_factory=Solver)

    def __post_init__(self) -> None:
        check_counts(self.burn_in, self.n_samples)
        if self.iterations < 1:
            raise UserError(f"MCEM needs at least 1 iteration, not {self.iterations}")
        if self.m_step not in ("exact", "gradient"):
            raise UserError(f"m_step must be 'exact' or 'gradient', not {self.m_step!r}")
        if not self.rate > 0:
            raise UserError(f"the rate must be positive, not {self.rate}")


@dataclass(frozen=True)
class Iteration:
    """What the progress callback is told."""

    number: int
    total: int
    alpha0: float
    mean_square: float  # of the residual per pixel, at the samples


class MCEM(Chain):
    """Chains of all images, and the estimate of the parameters that they lead to."""

    kind = "mcem"
    config: MCEMConfig

    def _begin(self) -> None:
        self._parameters = list(self.decoder.parameters())
        # log alpha0 travels several units where weights travel fractions: ten times their rate, as in learning.
        slow = [p for p in self._parameters if p is not self.decoder.log_alpha0]
        groups = [{"params": slow, "scale": 1.0}, {"params": [self.decoder.log_alpha0], "scale": 10.0}]
        self._optimiser = torch.optim.Adam(groups)

    def run(
        self,
        progress: Callable[[Iteration], None] | None = None,
        save_to: str | Path | None = None,
        save_every: int = 1,
    ) -> None:
        while self.number < self.config.iterations:
            report = self.iterate()
            if save_to is not None and (self.number % save_every == 0 or self.number == self.config.iterations):
                self.save(save_to)
            if progress is not None:
                progress(report)

    def iterate(self) -> Iteration:
        """One pass over the images; the estimate after it is kept, to see later whether it still moved."""
        started = time.monotonic()
        mean_square = self._exact_pass() if self.config.m_step == "exact" else self._gradient_pass()
        self.number += 1
        self.keep()
        self.seconds += time.monotonic() - started
        alpha0 = float(self.decoder.log_alpha0.detach().exp())
        return Iteration(self.number, self.config.iterations, alpha0, mean_square)

    def _exact_pass(self) -> float:
        count, n_samples, size = len(self.latents), self.config.n_samples, self.config.options.batch_size
        total = count * n_samples
        draws = Latents(  # of all images, then of all images again
            self.latents.s.repeat(1, 1, 1, n_samples), tuple(p.repeat(1, 1, 1, n_samples) for p in self.latents.places)
        )
        for n in slices(count, size):
            for number, kept in enumerate(self._expectation(n)):
                _copy(draws.rows(slice(number * count + n.start, number * count + n.stop)), kept)

        def completed() -> Iterator[Completed]:
            for n in slices(total, size):
                rows = draws.rows(n)
                x = self.x[..., torch.arange(n.start, n.stop, device=self.x.device) % count]
                yield Completed(x, rows.s.contiguous(), rows.places, torch.full_like(x[0, 0, 0], 1 / n_samples))

        mean_square = maximise_parameters(self.decoder, completed, self.config.priors, self.config.solver)
        self._maximise_beta(draws)
        return mean_square

    def _gradient_pass(self) -> float:
        count, size = len(self.latents), self.config.options.batch_size
        order = torch.randperm(count, generator=self.generator)
        squares = 0.0
        steps = len(range(0, count, size))
        for step, n in enumerate(slices(count, size)):
            for group in self._optimiser.param_groups:
                group["lr"] = (
                    group["scale"] * self.config.rate * (1 - (self.number + step / steps) / self.config.iterations)
                )
            squares += self._gradient_step(order[n].to(self.x.device))
        self._maximise_beta(self.latents)
        return squares / (count * self.decoder.architecture.n_pixels)

    def _gradient_step(self, index: Tensor) -> float:
        """One E-step and one step of Adam for the images at `index`; returns their squared residual."""
        draws = self._expectation(index)
        x, share = self.x[..., index], 1 / len(draws)
        self._optimiser.zero_grad()
        squares = 0.0
        value = self.config.priors.log_density(self.decoder) / len(self.latents)
        for draw in draws:
            mean = self.decoder(draw.s, Completed(x, draw.s, draw.places).z(self.decoder)).mean
            value = value + share * self.decoder.log_prob(x, mean).mean()
            squares += share * float((x - mean).detach().square().sum())
        (-value).backward()
        self._optimiser.step()
        return squares

    def _maximise_beta(self, draws: Latents) -> None:
        """For one draw of all images, or several one after the other."""
        if self.head is None or self.labels is None:
            return
        n_draws = len(draws) // len(self.latents)
        weight = torch.full_like(draws.s[0, 0, 0], 1 / n_draws)
        maximise_beta(self.head, self.labels.repeat(n_draws), draws.codes, weight, self.config.seed)

    def _expectation(self, index: slice | Tensor) -> list[Latents]:
        """Samples of z and s for some images; the chains' state moves with them."""
        options, alpha0 = self.config.options, self.decoder.log_alpha0.detach().exp()
        x = self.x[..., index].contiguous()
        rows = Latents(self.latents.s[..., index].clone(), tuple(p[..., index].clone() for p in self.latents.places))
        kept = []
        for sweep in range(self.config.burn_in + self.config.n_samples):
            prior = self.code_prior(index, x.shape[-1], self.draw_lambda(index, rows.codes))
            sweep_latents(self.decoder, x, rows, prior, alpha0, self.generator, options)
            if sweep >= self.config.burn_in:
                kept.append(rows.clone())
        self.latents.s[..., index] = rows.s
        for mine, drawn in zip(self.latents.places, rows.places, strict=True):
            mine[..., index] = drawn
        return kept

    def save(self, path: str | Path) -> None:
        tensors: dict[str, Tensor] = {}
        for number, parameter in enumerate(self._parameters):
            state = self._optimiser.state.get(parameter, {})
            tensors |= {f"adam-{number}:{name}": value for name, value in state.items()}
        self._write(path, tensors)

    def resume(self, path: str | Path) -> None:
        """Goes back to where a run with the same data and settings was saved; it goes on bit for bit."""
        tensors = self._read(path)
        self._optimiser.state.clear()
        for number, parameter in enumerate(self._parameters):
            state = saving.take(tensors, f"adam-{number}")
            if state:
                self._optimiser.state[parameter] = {
                    name: value.to(parameter.device if value.dim() else "cpu") for name, value in state.items()
                }

    def _settings(self) -> dict[str, Any]:
        return asdict(self.config)


def _copy(target: Latents, source: Latents) -> None:
    target.s.copy_(source.s)
    for mine, other in zip(target.places, source.places, strict=True):
        mine.copy_(other)
