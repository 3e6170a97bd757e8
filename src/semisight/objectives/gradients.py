"""Section 4 and appendix C, (20)-(24): the gradient of E_q(z)[log p(X | s, z)] with respect to q(z), in three ways.

z is discrete, so its gradient must be estimated. An estimator is an object, `NVIL()`, `StraightThrough()`
or `Local()`, that says two things:

    through_z        whether the gradient with respect to the drawn one-hot z is passed on to q
    surrogate(...)   a term [B] of value zero that is added to the bound for its gradient alone

nvil              no gradient through z; the score function with an input-dependent baseline, centring and variance
                  normalisation, as the paper [11]. Unbiased before the variance normalisation; very noisy.
straight-through  the gradient at the drawn z, taken as if it were q. Biased: it is the first-order change of
                  log p when the block's value moves, and leaves out the curvature.
local             for every block, the exact change of log p when its value v moves from place c to place a:
                      R[a] = alpha0 ( v (g[a] - g[c]) - v^2/2 ||d_a - d_c||^2 )
                  and then the gradient of sum_a q(a) R[a]. The first part is what straight-through passes; the
                  surrogate adds the second. Unbiased for the z nearest the image; for z further up the curvature is
                  approximate (model/curvature.py). Default.

With pooling="sampled", s depends on z too; nvil's signal then holds every term that z touches, while the other two pass
the straight-through gradient along that path, which is biased.
"""

from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from semisight.errors import UserError
from semisight.model.decoder import Decoded, Decoder
from semisight.model.image_model import ImageModel
from semisight.model.posterior import Posterior
from semisight.objectives.bound import Bound
from semisight.objectives.step import sum_over_processes

GradientName = Literal["nvil", "straight-through", "local"]


class Gradient(Protocol):
    """What the objective asks of an estimator; an `nn.Module`."""

    @property
    def through_z(self) -> bool: ...

    def suit(self, model: ImageModel) -> None:
        """Told the model before the first step."""
        ...

    def surrogate(
        self, x: Tensor, posterior: Posterior, decoded: Decoded, decoder: Decoder, bound: Bound
    ) -> Tensor: ...

    def after_step(self) -> None:
        """Called once after every step of the optimiser, on every process."""
        ...


class StraightThrough(nn.Module):
    """The gradient at the drawn z, taken as if it were q.

    Example:
        >>> import semisight as ss
        >>> model = ss.ImageModel.suited_to(ss.load("builtin:digits", limit=20))
        >>> objective = ss.Joint(model, gradient=ss.StraightThrough())
    """

    through_z = True

    def suit(self, model: ImageModel) -> None:
        pass

    def surrogate(self, x: Tensor, posterior: Posterior, decoded: Decoded, decoder: Decoder, bound: Bound) -> Tensor:
        return torch.zeros_like(bound.reconstruction)

    def after_step(self) -> None:
        pass


class Local(StraightThrough):
    """The exact change of log p when one block's value moves to another place.

    Example:
        >>> import semisight as ss
        >>> model = ss.ImageModel.suited_to(ss.load("builtin:digits", limit=20))
        >>> objective = ss.Joint(model, gradient=ss.Local())
    """

    def surrogate(self, x: Tensor, posterior: Posterior, decoded: Decoded, decoder: Decoder, bound: Bound) -> Tensor:
        return decoder.log_alpha0.detach().exp() * decoded.curvature


class NVIL(nn.Module):
    """The score function with the three variance reductions of Mnih and Gregor (2014).

    Args:
        seed: of the weights of the baseline network.
        decay: of the running mean and variance of the signal.

    Example:
        >>> import semisight as ss
        >>> model = ss.ImageModel.suited_to(ss.load("builtin:digits", limit=20))
        >>> objective = ss.Joint(model, gradient=ss.NVIL())
    """

    through_z = False
    centre: Tensor
    variance: Tensor
    started: Tensor

    def __init__(self, seed: int = 0, decay: float = 0.8) -> None:
        super().__init__()
        self.seed, self.decay, self.whole_bound = seed, decay, True
        for name, start in (("centre", 0.0), ("variance", 1.0), ("started", 0.0)):
            self.register_buffer(name, torch.tensor(start))
        self._seen: Tensor | None = None

    def suit(self, model: ImageModel) -> None:
        """The baseline reads the image. Where s depends on the drawn z, z touches every term of the bound."""
        self.whole_bound = not model.encoder.mean_is_exact
        generator, size = torch.Generator().manual_seed(self.seed), model.architecture.n_pixels
        self.inner = nn.Parameter(torch.randn(100, size, generator=generator) / size**0.5)
        self.inner_bias = nn.Parameter(torch.zeros(100, 1))
        self.outer = nn.Parameter(torch.zeros(1, 100))

    def surrogate(self, x: Tensor, posterior: Posterior, decoded: Decoded, decoder: Decoder, bound: Bound) -> Tensor:
        signal = (bound.value if self.whole_bound else bound.reconstruction).detach()
        scale = self.variance.sqrt().clamp_min(1.0)
        baseline = (self.outer @ torch.tanh(self.inner @ x.flatten(0, 2) + self.inner_bias))[0]
        advantage = (signal - self.centre) / scale - baseline
        if self.training:
            rest = signal - self.centre - scale * baseline.detach()
            self._seen = torch.stack([signal.sum(), rest.square().sum(), torch.full_like(signal.sum(), len(signal))])
        log_probability = torch.zeros_like(signal)
        for chosen in posterior.chosen:
            log_probability = log_probability + chosen.log_q_z.sum((0, 1, 2))
        score = advantage.detach() * log_probability
        fit = advantage.square()  # the baseline learns to foretell the signal
        return score - score.detach() - (fit - fit.detach())

    def after_step(self) -> None:
        if self._seen is None:
            return
        signal, squares, count = sum_over_processes(self._seen).to(self.centre)
        keep = self.decay if self.started else 0.0
        self.centre.mul_(keep).add_((1 - keep) * signal / count)
        self.variance.mul_(keep).add_((1 - keep) * squares / count)
        self.started.fill_(1.0)
        self._seen = None


GRADIENTS: dict[GradientName, type[NVIL] | type[StraightThrough]] = {
    "nvil": NVIL,
    "straight-through": StraightThrough,
    "local": Local,
}


def gradient_named(name: str, seed: int = 0) -> Gradient:
    """The estimator of that name."""
    if name not in GRADIENTS:
        raise UserError(f"no gradient estimator named {name!r}. There are: {', '.join(GRADIENTS)}")
    return NVIL(seed) if name == "nvil" else GRADIENTS[name]()
