"""Section 3.1 and appendix C.2, equations (9) and (25)-(35): labels from codes, by a Bayesian SVM or a softmax.

The story of the Bayesian SVM, for each of C one-versus-all classifiers:

    beta_l      ~ N(0, I/precision)                                 and a bias, an extra that the paper leaves out
    f_l         = beta_l's + bias_l                                 the decision value
    y_l         = +1 if the label is l, else -1
    y_l, lambda_l | f_l  has density  sqrt(gamma / (2 pi lambda)) exp(-gamma (1 + lambda - y f)^2 / (2 lambda))     (28)

The integral over lambda is exp(-2 gamma max(1 - y f, 0)), (9): the *collapsed* form, used for learning. Given y and f,
1/lambda is inverse Gaussian with mean 1/|1 - y f| and shape **gamma**. (34) prints shape 1, right only for gamma = 1.
Given lambda, (28) is Gaussian in beta: exact draws of both follow, for the samplers.

Two things follow from one hinge per class. Where no class has half of the probability, f = -1 for all of them is the
best that can be done (Lee, Lin and Wahba, 2004), and with many classes learning begins there and ends there; `balanced`
makes an image's own class weigh as much as all the others together. And (25) is no distribution over labels: a soft
target would draw every class with less than a half to -1, so soft targets are learned by `normalised`.

Shapes: codes `s`, `mu`, `log_sigma` are [B, J]; decision values [B, C]; labels int64 [B], -1 where there is none.
A missing label contributes exactly nothing, to the value and to the gradient.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

SMALLEST_DISTANCE = 1e-6  # guards 1/|1 - y f|, infinite for a code exactly on its margin
SMALLEST_VARIANCE = 1e-12  # the square root has an infinite gradient at zero, where beta may start
SMALLEST_LAMBDA = 1e-12  # a lambda near zero pins beta's to the margin: keeps the precision matrix invertible


class LabelHead(Protocol):
    """What the bound and the predictions need of labels; they do not know which head they have."""

    @property
    def n_classes(self) -> int: ...

    def log_prob(self, labels: Tensor, s: Tensor) -> Tensor:
        """[B]: log p(label | s), zero where the label is -1."""

    def log_prob_all(self, s: Tensor) -> Tensor:
        """[B, C]: log p(l | s) of every label l, for latent labels and soft targets."""

    def expected_log_prob_all(self, mu: Tensor, log_sigma: Tensor) -> Tensor:
        """[B, C]: the mean of `log_prob_all` over q(s|X) = N(mu, sigma^2), without drawing s."""

    def normalised(self, log_prob_all: Tensor) -> Tensor:
        """[B, C]: the same as the logarithm of a distribution over labels, for soft targets."""

    def log_prior(self, n_images: int) -> Tensor:
        """Scalar: one image's share of log p(beta), so that n_images of them make the whole."""

    def decision(self, mu: Tensor) -> Tensor:
        """[B, C]: the decision values averaged over q(s|X), exactly, because they are linear in s."""

    def spread(self, mu: Tensor, log_sigma: Tensor) -> Tensor:
        """[B, C]: the standard deviation of the decision values over q(s|X)."""

    def probability_scale(self) -> Tensor:
        """[C]: p(l | s) of the head itself is softmax(scale f), exactly or nearly."""


class LinearScores(nn.Module):
    """Decision values beta's + bias and what q(s|X) = N(mu, sigma^2) makes of them; shared by both heads."""

    def __init__(self, code_size: int, n_classes: int, bias: bool, generator: torch.Generator | None) -> None:
        super().__init__()
        if code_size < 1 or n_classes < 2:
            raise ValueError(f"a label head needs codes and at least 2 classes, not {code_size} and {n_classes}")
        # Appendix B: weights uniform in [-0.01, 0.01], biases zero.
        self.beta = nn.Parameter((torch.rand(code_size, n_classes, generator=generator) * 2 - 1) * 0.01)
        self.bias = nn.Parameter(torch.zeros(n_classes)) if bias else None

    def forward(self, s: Tensor) -> Tensor:
        f = s @ self.beta
        return f if self.bias is None else f + self.bias

    def variance(self, log_sigma: Tensor) -> Tensor:
        return ((2 * log_sigma).exp() @ self.beta.square()).clamp_min(SMALLEST_VARIANCE)

    def log_prior(self, n_images: int, precision: float = 1.0) -> Tensor:
        # The bias shares beta's prior, so that the samplers' posterior is always proper.
        parameters = [self.beta] if self.bias is None else [self.beta, self.bias]
        constant = math.log(2 * math.pi / precision)
        log_p = sum((-0.5 * (precision * p.square() + constant).sum() for p in parameters), self.beta.new_zeros(()))
        return log_p / n_images


@dataclass(frozen=True)
class LambdaPosterior:
    """1/lambda given y and f: inverse Gaussian with mean 1/distance and shape gamma, (34) with its shape mended."""

    distance: Tensor  # |1 - y f|, [B, C]
    gamma: Tensor  # [B, C]

    @property
    def mean_inverse(self) -> Tensor:
        """E[1/lambda], (35)."""
        return 1 / self.distance.clamp_min(SMALLEST_DISTANCE)

    @property
    def mean(self) -> Tensor:
        """E[lambda]: the mean of an inverse Gaussian's reciprocal."""
        return self.distance + 1 / self.gamma


class BayesianSVM(nn.Module):
    """C one-versus-all Bayesian SVMs on the code s.

    Args:
        code_size: J, the numbers of a code.
        n_classes: C.
        gamma: weighs errors against the prior; one number, or one per class.
        bias: whether every class has one.
        generator: draws the first weights.
        precision: that of beta's prior, 1 in the paper.
        balanced: gamma is that of an image's own class; the other C - 1 classifiers share another gamma.

    Example:
        >>> import semisight as ss, torch
        >>> ss.BayesianSVM(code_size=4, n_classes=3).decision(torch.zeros(2, 4)).shape
        torch.Size([2, 3])
    """

    gamma: Tensor

    def __init__(
        self,
        code_size: int,
        n_classes: int,
        gamma: float | Sequence[float] = 1.0,
        bias: bool = True,
        generator: torch.Generator | None = None,
        precision: float = 1.0,
        balanced: bool = False,
    ) -> None:
        super().__init__()
        if not (math.isfinite(precision) and precision > 0):
            raise ValueError(f"the precision of beta's prior must be a positive number, not {precision}")
        self.precision = precision
        self.others = 1 / (n_classes - 1) if balanced else 1.0  # gamma of a class that is not the image's own
        gammas = torch.as_tensor(gamma, dtype=torch.get_default_dtype())
        if gammas.dim() > 1 or (gammas.dim() == 1 and len(gammas) != n_classes) or not bool((gammas > 0).all()):
            raise ValueError(f"gamma must be positive, one number or one per class ({n_classes}), not {gamma}")
        self.scores = LinearScores(code_size, n_classes, bias, generator)
        self.register_buffer("gamma", gammas.expand(n_classes).clone())

    @property
    def n_classes(self) -> int:
        return len(self.gamma)

    def gamma_of(self, y: Tensor) -> Tensor:
        """[B, C]: gamma beside every y, [B, C] of +1 and -1."""
        return torch.where(y > 0, self.gamma, self.gamma * self.others)

    def log_prob(self, labels: Tensor, s: Tensor) -> Tensor:
        """The collapsed form, sum_l -2 gamma_l max(1 - y_l f_l, 0): the logarithm of (25)."""
        return pick(labels, self.log_prob_all(s))

    def log_prob_all(self, s: Tensor) -> Tensor:
        f = self.scores(s)
        return self._one_versus_all((1 - f).clamp_min(0), (1 + f).clamp_min(0))

    def expected_log_prob_all(self, mu: Tensor, log_sigma: Tensor) -> Tensor:
        """Exact: f is Gaussian under q(s|X), and so the mean hinge has a closed form."""
        f, deviation = self.scores(mu), self.scores.variance(log_sigma).sqrt()
        return self._one_versus_all(expected_hinge(1 - f, deviation), expected_hinge(1 + f, deviation))

    def _one_versus_all(self, loss_if_member: Tensor, loss_if_not: Tensor) -> Tensor:
        member, other = -2 * self.gamma * loss_if_member, -2 * self.others * self.gamma * loss_if_not
        return other.sum(1, keepdim=True) - other + member

    def normalised(self, log_prob_all: Tensor) -> Tensor:
        return log_prob_all.log_softmax(1)

    def lambda_posterior(self, labels: Tensor, s: Tensor) -> LambdaPosterior:
        y = one_versus_all(labels, self.n_classes).to(s.dtype)
        return LambdaPosterior((1 - y * self.scores(s)).abs(), self.gamma_of(y))

    def log_prior(self, n_images: int) -> Tensor:
        return self.scores.log_prior(n_images, self.precision)

    def decision(self, mu: Tensor) -> Tensor:
        return self.scores(mu)

    def spread(self, mu: Tensor, log_sigma: Tensor) -> Tensor:
        del mu  # a linear classifier's spread does not depend on where the code is
        return self.scores.variance(log_sigma).sqrt()

    def probability_scale(self) -> Tensor:
        """exp(-2 gamma sum of hinges) is softmax(4 gamma f) for |f| < 1, with less for the others if balanced."""
        return 2 * (1 + self.others) * self.gamma

    @torch.no_grad()
    def gibbs_step(self, labels: Tensor, s: Tensor, generator: torch.Generator) -> Tensor:
        """Draw lambda given beta, then beta (and the bias) given lambda, and keep them; returns lambda [B, C]."""
        y = one_versus_all(labels, self.n_classes).to(s.dtype)
        gamma = self.gamma_of(y)
        lam = draw_lambda(y, self.scores(s), gamma, generator)
        inputs = s if self.scores.bias is None else torch.cat([s, torch.ones_like(s[:, :1])], 1)
        drawn = draw_beta(inputs, y, lam, gamma, generator, self.precision)
        self.scores.beta.copy_(drawn[: s.shape[1]])
        if self.scores.bias is not None:
            self.scores.bias.copy_(drawn[-1])
        return lam


class Softmax(nn.Module):
    """The softmax likelihood in the SVM's place (end of section 3.1): log p(l|s) = f_l - log sum_k exp f_k.

    Args:
        code_size: J, the numbers of a code.
        n_classes: C.
        bias: whether every class has one.
        generator: draws the first weights.

    Example:
        >>> import semisight as ss, torch
        >>> ss.Softmax(code_size=4, n_classes=3).log_prob_all(torch.zeros(2, 4)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self, code_size: int, n_classes: int, bias: bool = True, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.scores = LinearScores(code_size, n_classes, bias, generator)

    @property
    def n_classes(self) -> int:
        return self.scores.beta.shape[1]

    def log_prob(self, labels: Tensor, s: Tensor) -> Tensor:
        return pick(labels, self.log_prob_all(s))

    def log_prob_all(self, s: Tensor) -> Tensor:
        return self.scores(s).log_softmax(1)

    def expected_log_prob_all(self, mu: Tensor, log_sigma: Tensor) -> Tensor:
        """A lower bound, not the mean: E[log sum exp f] <= log sum exp(E f + Var f / 2), so a bound stays a bound."""
        f = self.scores(mu)
        return f - (f + self.scores.variance(log_sigma) / 2).logsumexp(1, keepdim=True)

    def normalised(self, log_prob_all: Tensor) -> Tensor:
        return log_prob_all

    def log_prior(self, n_images: int) -> Tensor:
        return self.scores.log_prior(n_images)

    def decision(self, mu: Tensor) -> Tensor:
        return self.scores(mu)

    def spread(self, mu: Tensor, log_sigma: Tensor) -> Tensor:
        del mu
        return self.scores.variance(log_sigma).sqrt()

    def probability_scale(self) -> Tensor:
        return torch.ones(self.n_classes)


def one_versus_all(labels: Tensor, n_classes: int) -> Tensor:
    """[B, C] int64: y = +1 for the label's own classifier, -1 for the others, 0 throughout where the label is -1."""
    y = 2 * (labels[:, None] == torch.arange(n_classes, device=labels.device)).long() - 1
    return y * (labels >= 0)[:, None]


def pick(labels: Tensor, log_prob_all: Tensor) -> Tensor:
    """[B]: each image's own entry of [B, C]; a missing label picks an exact zero."""
    chosen = log_prob_all.gather(1, labels.clamp_min(0)[:, None]).squeeze(1)
    return torch.where(labels >= 0, chosen, torch.zeros_like(chosen))


def expected_hinge(mean: Tensor, deviation: Tensor) -> Tensor:
    """E[max(u, 0)] for u ~ N(mean, deviation^2): mean Phi(mean/deviation) + deviation phi(mean/deviation)."""
    ratio = mean / deviation
    density = torch.exp(-0.5 * ratio.square()) / math.sqrt(2 * math.pi)
    return mean * torch.special.ndtr(ratio) + deviation * density


def draw_lambda(y: Tensor, f: Tensor, gamma: Tensor, generator: torch.Generator) -> Tensor:
    """Exact draws of lambda given y and f, all [B, C], gamma [C] or [B, C]: 1/lambda ~ IG(1/|1 - y f|, gamma).

    Michael, Schucany and Haas (1976), written for lambda itself. Their quadratic's two roots multiply to distance^2;
    the larger one is a sum of positive terms, so nothing cancels and distance = 0 (mean infinite: lambda is then
    chi-square over gamma) needs no special case.
    """
    distance = (1 - y * f).abs()
    chi = torch.randn(distance.shape, dtype=f.dtype, device=f.device, generator=generator).square()
    uniform = torch.rand(distance.shape, dtype=f.dtype, device=f.device, generator=generator)
    larger = distance + (chi + (chi * (chi + 4 * gamma * distance)).sqrt()) / (2 * gamma)
    larger = larger.clamp_min(torch.finfo(f.dtype).tiny)
    # The larger lambda is the smaller root of 1/lambda, taken with probability mean / (mean + root).
    return torch.where(uniform * (larger + distance) <= larger, larger, distance * (distance / larger)).clamp_min(
        torch.finfo(f.dtype).tiny
    )


def draw_beta(
    s: Tensor, y: Tensor, lam: Tensor, gamma: Tensor, generator: torch.Generator, precision: float = 1.0
) -> Tensor:
    """Exact draws [J, C] of beta given codes, labels and lambda, one classifier at a time.

    (28) is Gaussian in beta: P = precision I + gamma sum_n s s'/lambda is the precision of its posterior, and
    P^-1 gamma sum_n s y (1 + lambda)/lambda the mean.
    For a bias, let s end in a column of ones. Images with y = 0 count for nothing. In float64, whatever comes in.
    """
    s64, y64 = s.double(), y.double()
    weight = gamma.double() * y64.abs() / lam.double().clamp_min(SMALLEST_LAMBDA)  # [B, C]
    noise = torch.randn(s.shape[1], y.shape[1], dtype=torch.float64, device=s.device, generator=generator)
    prior = precision * torch.eye(s.shape[1], dtype=torch.float64, device=s.device)
    drawn = torch.empty_like(noise)
    for c in range(y.shape[1]):
        w = weight[:, c]
        root = torch.linalg.cholesky(prior + (s64 * w[:, None]).T @ s64)
        mean = torch.cholesky_solve((s64.T @ (w * y64[:, c] * (1 + lam[:, c].double())))[:, None], root)
        drawn[:, c : c + 1] = mean + torch.linalg.solve_triangular(root.T, noise[:, c : c + 1], upper=True)
    return drawn.to(s.dtype)
