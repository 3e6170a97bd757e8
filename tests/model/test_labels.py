"""Section 3.1 and appendix C.2: the label heads against quadrature, brute force and Monte Carlo."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats
from torch import Tensor

from semisight.model.heads.labels import (
    BayesianSVM,
    LabelHead,
    LambdaPosterior,
    Softmax,
    draw_beta,
    draw_lambda,
    expected_hinge,
    one_versus_all,
    pick,
)

B, J, C = 12, 5, 4
GAMMAS = [0.5, 1.0, 3.0]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=seeded(seed))


def svm(gamma: float | list[float] = 1.0, bias: bool = True, seed: int = 1, balanced: bool = False) -> BayesianSVM:
    head = BayesianSVM(J, C, gamma=gamma, bias=bias, balanced=balanced).double()
    with torch.no_grad():
        head.scores.beta.copy_(normal(J, C, seed=seed) * 0.6)
        if head.scores.bias is not None:
            head.scores.bias.copy_(normal(C, seed=seed + 1) * 0.3)
    return head


def softmax(seed: int = 1) -> Softmax:
    head = Softmax(J, C).double()
    with torch.no_grad():
        head.scores.beta.copy_(normal(J, C, seed=seed) * 0.6)
    return head


def heads() -> list[LabelHead]:
    return [svm([0.5, 1.0, 2.0, 3.0]), svm(bias=False), softmax(), svm([0.5, 1.0, 2.0, 3.0], balanced=True)]


def expected_log_prob(head: LabelHead, target: Tensor, mu: Tensor, log_sigma: Tensor) -> Tensor:
    return pick(target, head.expected_log_prob_all(mu, log_sigma))


def labels(missing: bool = False) -> Tensor:
    drawn = torch.randint(0, C, (B,), generator=seeded(5))
    return torch.where(torch.arange(B) % 3 == 0, -1, drawn) if missing else drawn


def log_joint(lam: np.ndarray | float, u: float, gamma: float) -> np.ndarray | float:
    """The logarithm of (28), with u = 1 - y f."""
    return 0.5 * np.log(gamma / (2 * np.pi * lam)) - gamma * (u + lam) ** 2 / (2 * lam)


# ---- (9): the collapsed form ------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("f", [-2.3, -0.4, 0.7, 1.6, 4.0])
@pytest.mark.parametrize("y", [-1, 1])
def test_equation_9_integrates_to_the_hinge(gamma: float, f: float, y: int) -> None:
    u = 1 - y * f
    # lambda = t^2 removes the integrable singularity at zero
    value, _ = integrate.quad(lambda t: 2 * t * np.exp(log_joint(t * t, u, gamma)), 0, np.inf, epsabs=1e-13, limit=200)
    head = BayesianSVM(1, 2, gamma=gamma, bias=False).double()
    with torch.no_grad():
        head.scores.beta.copy_(torch.tensor([[f, 0.0]], dtype=torch.float64))
    label = torch.tensor([0 if y == 1 else 1])
    own = head.log_prob(label, torch.ones(1, 1, dtype=torch.float64)).item() + 2 * gamma  # the other one is at f = 0
    assert value == pytest.approx(math.exp(own), rel=1e-8)
    assert value == pytest.approx(math.exp(-2 * gamma * max(u, 0)), rel=1e-8)


def test_log_prob_is_the_sum_over_classifiers() -> None:
    head, s, target = svm([0.5, 1.0, 2.0, 3.0]), normal(B, J), labels()
    expected = []
    for n in range(B):
        total = 0.0
        for c in range(C):
            y = 1 if target[n] == c else -1
            f = (s[n] @ head.scores.beta[:, c] + head.scores.bias[c]).item()
            total -= 2 * float(head.gamma[c]) * max(1 - y * f, 0)
        expected.append(total)
    torch.testing.assert_close(head.log_prob(target, s), torch.tensor(expected, dtype=torch.float64))


def test_all_labels_at_once_agree_with_each_label() -> None:
    for head in heads():
        s = normal(B, J)
        for c in range(C):
            target = torch.full((B,), c)
            torch.testing.assert_close(head.log_prob_all(s)[:, c], head.log_prob(target, s))


def test_softmax_is_a_distribution() -> None:
    torch.testing.assert_close(softmax().log_prob_all(normal(B, J)).exp().sum(1), torch.ones(B, dtype=torch.float64))


# ---- (33)-(35): lambda and the EM form -----------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("f", [-1.5, 0.3, 0.95, 2.5])
def test_lambda_posterior_matches_quadrature(gamma: float, f: float) -> None:
    u = 1 - f

    def moment(power: int) -> float:
        def integrand(t: float) -> float:
            return 2 * t * t ** (2 * power) * np.exp(log_joint(t * t, u, gamma))

        return integrate.quad(integrand, 0, np.inf, epsabs=1e-13, limit=200)[0]

    posterior = LambdaPosterior(torch.tensor([[abs(u)]], dtype=torch.float64), torch.tensor([gamma]).double())
    assert posterior.mean_inverse.item() == pytest.approx(moment(-1) / moment(0), rel=1e-6)
    assert posterior.mean.item() == pytest.approx(moment(1) / moment(0), rel=1e-6)


def expected_complete(head: BayesianSVM, labels: Tensor, s: Tensor, posterior: LambdaPosterior | None = None) -> Tensor:
    """[B]: the EM form (31)-(35) with lambda's posterior held fixed, plus that posterior's entropy.

    -gamma (u^2 E[1/lambda] / 2 + u + distance / 2), u = 1 - y f, is E[log p(y, lambda | f)] but for terms that do
    not depend on f, chosen so that it *touches* `log_prob` where the posterior was computed and lies below it
    elsewhere. By Fisher's identity its gradient there is that of the hinge.
    """
    y = one_versus_all(labels, head.n_classes).to(s.dtype)
    if posterior is None:
        with torch.no_grad():
            posterior = head.lambda_posterior(labels, s)
    u = 1 - y * head.scores(s)
    value = -posterior.gamma * (u.square() * posterior.mean_inverse / 2 + u + posterior.distance / 2)
    return torch.where(y != 0, value, torch.zeros_like(value)).sum(1)


@pytest.mark.parametrize("gamma", GAMMAS)
def test_expected_complete_is_the_mean_of_the_complete_log_likelihood(gamma: float) -> None:
    """With lambda's posterior fixed at f0, its differences in f are those of E[log p(y, lambda | f)] by quadrature."""
    u0 = 0.7
    draws_of = stats.invgauss(mu=1 / (u0 * gamma), scale=gamma)  # 1/lambda ~ IG(mean 1/u0, shape gamma)

    def by_quadrature(u: float) -> float:
        return integrate.quad(lambda x: draws_of.pdf(x) * log_joint(1 / x, u, gamma), 0, np.inf, limit=300)[0]

    head = BayesianSVM(1, 2, gamma=gamma, bias=False).double()
    posterior = LambdaPosterior(torch.full((1, 2), u0, dtype=torch.float64), head.gamma)
    target, values = torch.tensor([0]), {}
    for u in (-0.5, 0.7, 2.0):
        with torch.no_grad():
            head.scores.beta.copy_(torch.tensor([[1 - u, 0.0]], dtype=torch.float64))
        values[u] = expected_complete(head, target, torch.ones(1, 1, dtype=torch.float64), posterior).item()
    for u in (-0.5, 2.0):
        assert values[u] - values[0.7] == pytest.approx(by_quadrature(u) - by_quadrature(0.7), rel=1e-5)


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("gamma", GAMMAS)
def test_fishers_identity(gamma: float, balanced: bool) -> None:
    """The gradient of the expected complete log-likelihood equals the hinge's, for beta, bias and the code."""
    head, target = svm(gamma, balanced=balanced), labels(missing=True)
    s = normal(B, J).requires_grad_()
    parameters = [head.scores.beta, head.scores.bias, s]
    collapsed = torch.autograd.grad(head.log_prob(target, s).sum(), parameters)
    complete = torch.autograd.grad(expected_complete(head, target, s).sum(), parameters)
    for a, b in zip(collapsed, complete, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_expected_complete_touches_the_hinge_from_below(here: int, there: int) -> None:
    """EM's promise: equal at the point of the posterior, a lower bound anywhere else."""
    target, s = labels(), normal(B, J)
    head = svm(seed=here)
    posterior = head.lambda_posterior(target, s)
    torch.testing.assert_close(expected_complete(head, target, s, posterior), head.log_prob(target, s))
    other = svm(seed=there)
    assert bool((expected_complete(other, target, s, posterior) <= other.log_prob(target, s) + 1e-9).all())


def test_a_code_on_its_margin_is_finite() -> None:
    head = BayesianSVM(1, 2, bias=False).double()
    with torch.no_grad():
        head.scores.beta.copy_(torch.tensor([[1.0, -1.0]]))
    s = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
    value = expected_complete(head, torch.tensor([0]), s)
    value.sum().backward()
    assert value.item() == pytest.approx(0)
    assert s.grad is not None and bool(s.grad.isfinite().all())


# ---- many classes ---------------------------------------------------------------------------------------------------


def test_a_balanced_svm_begins_as_a_softmax_does() -> None:
    """At f = 0 the pull towards an image's own class is as strong as that away from all others; without balance the
    others pull C - 1 times as much, and all decision values fall to -1."""
    pulls = {}
    for balanced in (False, True):
        head = BayesianSVM(1, 20, bias=True, balanced=balanced).double()
        with torch.no_grad():
            head.scores.beta.zero_()
        head.log_prob(torch.tensor([3]), torch.zeros(1, 1, dtype=torch.float64)).sum().backward()
        assert head.scores.bias is not None and head.scores.bias.grad is not None
        pulls[balanced] = head.scores.bias.grad
    assert float(pulls[True].sum()) == pytest.approx(0) and float(pulls[False].sum()) == pytest.approx(-36)
    assert float(pulls[True][3]) == float(pulls[False][3]) == 2


def test_images_of_uncertain_class_are_told_apart_by_a_balanced_svm_alone() -> None:
    """Of twenty classes one has probability 0.4, and the others share the rest: the best decision values."""
    p = torch.full((20,), 0.6 / 19, dtype=torch.float64)
    p[7] = 0.4
    best = {}
    for balanced in (False, True):
        head = BayesianSVM(1, 20, balanced=balanced).double()
        optimiser = torch.optim.SGD(head.parameters(), 0.01)
        for _ in range(400):
            optimiser.zero_grad()
            (-(p * head.log_prob_all(torch.zeros(1, 1, dtype=torch.float64))).sum()).backward()
            optimiser.step()
        best[balanced] = head.decision(torch.zeros(1, 1, dtype=torch.float64))[0].detach()
    assert torch.allclose(best[False], -torch.ones(20).double(), atol=0.05)
    assert float(best[True][7]) == pytest.approx(1, abs=0.05) and float(best[True][8:].max()) < -0.1


def test_normalised_is_a_distribution_that_a_soft_target_leaves_as_it_is() -> None:
    """Hinges of a soft target move every decision value; the normalised head is at rest where it says the target."""
    for head in heads():
        s = normal(B, J).requires_grad_()
        log_p = head.normalised(head.log_prob_all(s))
        torch.testing.assert_close(log_p.exp().sum(1), torch.ones(B, dtype=torch.float64))
        (gradient,) = torch.autograd.grad((log_p.exp().detach() * log_p).sum(), s)
        assert float(gradient.abs().max()) < 1e-10


# ---- exact draws for the samplers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("f", [-1.0, 0.9, 3.0])
def test_lambda_draws_are_inverse_gaussian(gamma: float, f: float) -> None:
    n, distance = 40_000, abs(1 - f)
    ones = torch.ones(n, 1, dtype=torch.float64)
    lam = draw_lambda(ones, f * ones, torch.tensor([gamma]).double(), seeded(3)).squeeze(1).numpy()
    exact = stats.invgauss(mu=1 / (distance * gamma), scale=gamma)
    assert exact.mean() == pytest.approx(1 / distance) and exact.var() == pytest.approx(1 / (distance**3 * gamma))
    assert stats.kstest(1 / lam, exact.cdf).pvalue > 1e-3
    # moments of lambda itself are light-tailed: 5 standard errors
    assert lam.mean() == pytest.approx(distance + 1 / gamma, abs=5 * lam.std() / math.sqrt(n))
    assert lam.var() == pytest.approx(distance / gamma + 2 / gamma**2, rel=0.1)
    inverse = 1 / lam
    assert inverse.mean() == pytest.approx(1 / distance, abs=5 * exact.std() / math.sqrt(n))


def test_the_papers_shape_of_one_is_refuted_for_other_gammas() -> None:
    """(34) prints shape 1; draws with shape gamma fail that law, which is how we know the test above can fail."""
    ones = torch.ones(5_000, 1, dtype=torch.float64)
    lam = draw_lambda(ones, -ones, torch.tensor([3.0]).double(), seeded(4)).squeeze(1).numpy()
    assert stats.kstest(1 / lam, stats.invgauss(mu=0.5, scale=1).cdf).pvalue < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("distance", [0.0, 1e-30, 1e-12, 1e-4, 1e6])
def test_lambda_draws_are_safe_at_the_margin_and_far_away(dtype: torch.dtype, distance: float) -> None:
    n = 20_000
    ones = torch.ones(n, 1, dtype=dtype)
    lam = draw_lambda(torch.zeros_like(ones) + 1, 1 - distance * ones, torch.tensor([2.0], dtype=dtype), seeded(5))
    assert bool(lam.isfinite().all()) and bool((lam > 0).all()) and bool((1 / lam).isfinite().all())
    if distance < 1e-6:  # at the margin 2 * lambda is chi-square with one degree of freedom
        assert stats.kstest(2 * lam.double().squeeze(1).numpy(), stats.chi2(1).cdf).pvalue > 1e-3
    else:
        assert lam.double().mean().item() == pytest.approx(distance + 0.5, rel=0.05)


@pytest.mark.parametrize("precision", [1.0, 7.0])
def test_beta_draws_match_the_brute_force_gaussian(precision: float) -> None:
    """Mean and covariance of the conditional, from a numerical Hessian of log p(beta) + the log of (28)."""
    n, dim, n_draws = 8, 3, 40_000
    s, target = normal(n, dim, seed=7), torch.randint(-1, 2, (n,), generator=seeded(8))
    y, gamma = one_versus_all(target, 2).double(), torch.tensor([0.5, 3.0]).double()
    lam = draw_lambda(y, normal(n, 2, seed=9), gamma, seeded(10))

    def log_density(beta: Tensor) -> Tensor:
        value = -0.5 * precision * beta.square().sum()
        for i in range(n):
            for c in range(2):
                if target[i] >= 0:
                    distance = 1 + lam[i, c] - y[i, c] * (beta[:, c] @ s[i])
                    value = value - gamma[c] * distance.square() / (2 * lam[i, c])
        return value

    zero = torch.zeros(dim, 2, dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(log_density, zero).reshape(dim * 2, dim * 2)
    gradient = torch.autograd.functional.jacobian(log_density, zero).reshape(-1)
    covariance = torch.linalg.inv(-hessian)
    mean = covariance @ gradient

    generator = seeded(11)
    many = torch.stack([draw_beta(s, y, lam, gamma, generator, precision).reshape(-1) for _ in range(n_draws // 10)])
    error = many.mean(0) - mean
    z_score = error / (covariance.diagonal() / len(many)).sqrt()
    assert z_score.abs().max() < 4.5
    scale = covariance.diagonal().sqrt()
    assert ((many.T.cov() - covariance) / scale[:, None] / scale[None]).abs().max() < 5 / math.sqrt(len(many))


def test_beta_draws_ignore_images_without_a_label() -> None:
    s, y, gamma = normal(6, J), one_versus_all(torch.tensor([0, 1, 0, -1, -1, -1]), 2).double(), torch.ones(2).double()
    lam = torch.rand(6, 2, dtype=torch.float64, generator=seeded(1)) + 0.1
    torch.testing.assert_close(
        draw_beta(s, y, lam, gamma, seeded(2)), draw_beta(s[:3], y[:3], lam[:3], gamma, seeded(2))
    )


@pytest.mark.parametrize("precision", [1.0, 4.0])
def test_gibbs_visits_the_pseudo_posterior_of_beta(precision: float) -> None:
    """Long-run mean and variance of a chain on one coefficient against the pseudo-posterior on a grid."""
    s = torch.tensor([[1.0], [-0.5], [2.0], [0.3], [-1.5]], dtype=torch.float64)
    target = torch.tensor([0, 1, 0, 1, 1])
    grid = np.linspace(-6, 6, 4001)
    log_p = -0.5 * precision * grid**2
    for code, y in zip(s.squeeze(1).tolist(), [1, -1, 1, -1, -1], strict=True):
        log_p = log_p - 2 * 1.5 * np.maximum(1 - y * grid * code, 0)
    p = np.exp(log_p - special.logsumexp(log_p))
    mean, second = (p * grid).sum(), (p * grid**2).sum()

    head = BayesianSVM(1, 2, gamma=1.5, bias=False, precision=precision).double()
    generator, chain = seeded(0), []
    for _ in range(6_000):
        head.gibbs_step(target, s, generator)
        chain.append(head.scores.beta[0, 0].item())
    chain = chain[200:]
    assert np.mean(chain) == pytest.approx(mean, abs=0.03)
    assert np.var(chain) == pytest.approx(second - mean**2, rel=0.12)


def test_gibbs_moves_the_bias_too() -> None:
    head, generator = svm(), seeded(0)
    before = head.scores.bias.clone()
    lam = head.gibbs_step(labels(missing=True), normal(B, J), generator)
    assert lam.shape == (B, C) and bool((head.scores.bias != before).all())


# ---- averaging over codes ------------------------------------------------------------------------------------------


def test_sampled_predictions_converge_to_the_closed_form() -> None:
    mu, log_sigma = normal(B, J), normal(B, J, seed=2) * 0.3 - 0.5
    for head in heads():
        mean, spread = head.decision(mu), head.spread(mu, log_sigma)
        errors = []
        for n_codes in (50, 20_000):
            noise = torch.randn(n_codes, B, J, dtype=torch.float64, generator=seeded(n_codes))
            codes = mu + log_sigma.exp() * noise
            error = (head.scores(codes).mean(0) - mean).abs()
            assert bool((error < 5 * spread / math.sqrt(n_codes)).all())
            errors.append(error.max().item())
        assert errors[1] < errors[0] / 5
        torch.testing.assert_close(head.scores(codes[:1]).mean(0), head.decision(codes[0]))
        sampled = torch.stack([head.decision(code) for code in codes[:4000]]).std(0)
        torch.testing.assert_close(sampled, spread, rtol=0.06, atol=0)


@pytest.mark.parametrize("gamma", GAMMAS)
def test_expected_log_prob_matches_monte_carlo(gamma: float) -> None:
    head, mu, log_sigma, target = svm(gamma), normal(B, J), normal(B, J, seed=2) * 0.3 - 0.5, labels(missing=True)
    codes = mu + log_sigma.exp() * torch.randn(30_000, B, J, dtype=torch.float64, generator=seeded(1))
    values = head.log_prob(target.repeat(len(codes)), codes.flatten(0, 1)).detach().reshape(len(codes), B)
    exact = expected_log_prob(head, target, mu, log_sigma)
    standard_error = values.std(0) / math.sqrt(len(values))
    assert bool(((values.mean(0) - exact).abs() <= 5 * standard_error).all())


def test_softmax_expected_log_prob_is_a_lower_bound_within_half_the_variance() -> None:
    head, mu, log_sigma, target = softmax(), normal(B, J), normal(B, J, seed=2) * 0.3 - 1.5, labels()
    codes = mu + log_sigma.exp() * torch.randn(20_000, B, J, dtype=torch.float64, generator=seeded(1))
    values = head.log_prob(target.repeat(len(codes)), codes.flatten(0, 1)).detach().reshape(len(codes), B)
    slack = values.mean(0) - expected_log_prob(head, target, mu, log_sigma)
    allowed = 5 * values.std(0) / math.sqrt(len(values))
    most = head.spread(mu, log_sigma).square().max(1).values / 2
    assert bool((slack > -allowed).all()) and bool((slack < most + allowed).all())


@settings(max_examples=100, deadline=None)
@given(st.floats(-50, 50), st.floats(1e-6, 20))
def test_expected_hinge_lies_between_its_bounds(mean: float, deviation: float) -> None:
    value = expected_hinge(*torch.tensor([mean, deviation], dtype=torch.float64)).item()
    low = max(mean, 0.0)  # Jensen
    assert low - 1e-9 <= value <= low + deviation / math.sqrt(2 * math.pi) + 1e-9


def test_expected_log_prob_without_spread_is_log_prob() -> None:
    mu, target = normal(B, J), labels(missing=True)
    for head in heads():
        torch.testing.assert_close(
            expected_log_prob(head, target, mu, torch.full_like(mu, -20)),
            head.log_prob(target, mu),
            rtol=1e-5,
            atol=1e-5,
        )


# ---- missing labels, gradients, prior, learning --------------------------------------------------------------------


def test_missing_labels_contribute_nothing() -> None:
    mu, log_sigma, known = normal(B, J), normal(B, J, seed=2) - 1, labels(missing=True)
    for head in heads():
        with_missing, only_known = mu.clone().requires_grad_(), mu[known >= 0].clone().requires_grad_()
        sides = [lambda t, m, ls, h=head: h.log_prob(t, m), lambda t, m, ls, h=head: expected_log_prob(h, t, m, ls)]
        if isinstance(head, BayesianSVM):
            sides.append(lambda t, m, ls, h=head: expected_complete(h, t, m))
        for side in sides:
            value = side(known, with_missing, log_sigma)
            assert bool((value[known < 0] == 0).all()) and bool((value[known >= 0] != 0).all())
            inputs = [with_missing, *head.parameters()]
            gradient = torch.autograd.grad(value.sum(), inputs)
            assert bool((gradient[0][known < 0] == 0).all())
            alone = side(known[known >= 0], only_known, log_sigma[known >= 0]).sum()
            expected = torch.autograd.grad(alone, [only_known, *head.parameters()])
            torch.testing.assert_close(value.sum(), alone)
            for a, b in zip(gradient[1:], expected[1:], strict=True):
                torch.testing.assert_close(a, b)


def test_a_batch_without_labels_is_zero_with_zero_gradient() -> None:
    for head in heads():
        value = head.log_prob(torch.full((B,), -1), normal(B, J))
        assert bool((value == 0).all())
        assert all(bool((g == 0).all()) for g in torch.autograd.grad(value.sum(), list(head.parameters())))


def test_every_parameter_and_code_receives_a_gradient_from_the_start() -> None:
    """In float32, from the very first weights on."""
    for head in (BayesianSVM(J, C, generator=seeded(0)), Softmax(J, C, generator=seeded(0))):
        for side in (head.log_prob, lambda t, m, h=head: expected_log_prob(h, t, m, torch.zeros_like(m))):
            s = normal(B, J).float().requires_grad_()
            gradients = torch.autograd.grad(side(labels(), s).sum(), [s, *head.parameters()])
            assert all(bool(g.isfinite().all()) and bool((g != 0).any()) for g in gradients)


def test_gradients_are_finite_where_beta_is_zero() -> None:
    head = BayesianSVM(J, C)
    torch.nn.init.zeros_(head.scores.beta)
    value = expected_log_prob(head, labels(), normal(B, J).float(), torch.zeros(B, J))
    value.sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in head.parameters())


def test_the_priors_shares_add_up_to_the_prior() -> None:
    for head, spread in (*((head, 1.0) for head in heads()), (BayesianSVM(J, C, precision=4.0), 0.5)):
        whole = sum(torch.distributions.Normal(0, spread).log_prob(p).sum() for p in head.parameters())
        torch.testing.assert_close(head.log_prior(1), whole)
        torch.testing.assert_close(sum(head.log_prior(100) for _ in range(100)), whole)


def test_same_seed_same_weights_and_draws() -> None:
    assert torch.equal(
        BayesianSVM(J, C, generator=seeded(3)).scores.beta, BayesianSVM(J, C, generator=seeded(3)).scores.beta
    )
    one, two = svm(), svm()
    for head in (one, two):
        head.gibbs_step(labels(), normal(B, J), seeded(4))
    assert torch.equal(one.scores.beta, two.scores.beta)


@pytest.mark.parametrize("gamma", [0.0, -1.0, [1.0, 2.0], float("nan")])
def test_a_gamma_that_makes_no_sense_is_refused(gamma: float | list[float]) -> None:
    with pytest.raises(ValueError, match="gamma"):
        BayesianSVM(J, C, gamma=gamma)


@pytest.mark.parametrize("precision", [0.0, -1.0, float("inf"), float("nan")])
def test_a_precision_that_makes_no_sense_is_refused(precision: float) -> None:
    with pytest.raises(ValueError, match="precision"):
        BayesianSVM(J, C, precision=precision)


@pytest.mark.parametrize("build", [BayesianSVM, Softmax])
@pytest.mark.parametrize("expected", [False, True])
def test_a_toy_problem_is_learned(build: type[BayesianSVM] | type[Softmax], expected: bool) -> None:
    """Two noisy classes, half of the labels missing: within 1 % of the best linear rule."""
    generator = seeded(0)
    truth = torch.randint(0, 2, (2_000,), generator=generator)
    s = torch.randn(2_000, 6, generator=generator)
    s[:, 0] += 3.0 * truth - 1.5  # the best rule errs with probability Phi(-1.5) = 6.7 %
    target = torch.where(torch.arange(2_000) % 2 == 0, truth, -1)
    head = build(6, 2, generator=generator)
    optimiser = torch.optim.Adam(head.parameters(), lr=0.05)
    for _ in range(150):
        if expected:
            side = expected_log_prob(head, target[:1000], s[:1000], torch.full((1000, 6), -2.0))
        else:
            side = head.log_prob(target[:1000], s[:1000])
        loss = -(side.mean() + head.log_prior(500))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    error = (head.decision(s[1000:]).argmax(1) != truth[1000:]).float().mean().item()
    best = ((s[1000:, 0] > 0).long() != truth[1000:]).float().mean().item()
    assert error <= best + 0.01
