"""(9), (12), (29): labels beside the bound, what unlabelled images add, and the weight of each."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semisight.errors import UserError
from semisight.model.heads.labels import BayesianSVM, Softmax
from semisight.objectives.joint import Joint
from semisight.objectives.labels import Labels, class_shares
from semisight.objectives.pseudo_labels import PseudoLabels
from semisight.objectives.targets import Xi
from semisight.training.ema import EMA
from tests.objectives.cases import ALL, IMAGES, PIXELS, J, N, gradients, model_with, only, step

EVERY = torch.arange(N) % 3


def few(n_known: int) -> Tensor:
    return torch.where(torch.arange(N) < n_known, torch.arange(N) % 3, -1)


def labels_of(values: Tensor = EVERY, head: str = "svm", wide: float = 1.0, **options: Any) -> Labels:
    made: nn.Module = BayesianSVM(J, 3) if head == "svm" else Softmax(J, 3)
    nn.init.normal_(made.scores.beta, std=wide, generator=torch.Generator().manual_seed(2))  # type: ignore
    return Labels(made, values, **options)


def test_xi_of_the_paper() -> None:
    labels = Labels(Softmax(J, 10), torch.arange(10))
    labels.balance(784, 0.5)
    assert labels.weight(0) == pytest.approx(156.8)
    labels.xi = Xi(8.0, warmup=4)
    assert (labels.weight(0), labels.weight(100)) == (2.0, 8.0)
    nothing = labels_of(torch.full((N,), -1))
    with pytest.raises(UserError, match="at least one labelled image"):
        nothing.weight(0)
    with pytest.raises(UserError, match="must be a number of at least 0"):
        Xi(-1.0)


@pytest.mark.parametrize("encoder", ["expected", "sampled"])
def test_the_label_term_is_that_of_the_drawn_code(encoder: str) -> None:
    """(12) with the one draw s that the decoder gets, not with the mean of q(s | X)."""
    joint = Joint(model_with(encoder), [labels := labels_of(xi=Xi(7.0))])
    result = step(joint)
    posterior = joint.model.encode(IMAGES, torch.Generator().manual_seed(3))
    log_p = labels.label_head.log_prob(EVERY, posterior.code).mean().detach()
    assert float(result.terms["labels"]) == pytest.approx(float(log_p), rel=1e-5)
    assert float(result.terms["side"]) == pytest.approx(7 * float(log_p), rel=1e-5)
    of_mean = labels.label_head.log_prob(EVERY, posterior.mean).mean().detach()
    assert abs(float(of_mean - log_p)) > 0.02 * abs(float(log_p)), "the two differ, so that the test can tell"
    terms = result.terms
    total = terms["reconstruction"] - terms["kl_s"] - terms["kl_z"] + terms["side"]
    assert float(terms["bound"]) == pytest.approx(float(total), rel=1e-5)
    loss = -terms["bound"] - labels.log_prior(0)
    torch.testing.assert_close(result.loss, loss, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("head", ["svm", "softmax"])
def test_the_prior_of_beta_counts_once_per_data_set_in_the_units_of_the_labels(head: str) -> None:
    """N images, each with its share, make xi log N(beta; 0, I): as often as every label is counted."""
    labels = labels_of(few(4), head)
    labels.balance(PIXELS, 4 / N)
    beta, bias = labels.head.scores.beta, labels.head.scores.bias  # type: ignore[union-attr]
    log_p = sum(torch.distributions.Normal(0.0, 1.0).log_prob(p).sum() for p in (beta, bias))  # type: ignore[arg-type]
    torch.testing.assert_close(N * labels.log_prior(0), labels.weight(0) * log_p, rtol=1e-5, atol=1e-2)
    dealt = labels_of(few(4), head)  # half of each batch has a label: a label is then seen more often, and xi is less
    dealt.balance(PIXELS, 0.5)
    torch.testing.assert_close(dealt.log_prior(0), labels.log_prior(0), rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("wrong", [[0, 3], [5, -1]])
def test_labels_that_the_head_does_not_know_are_refused(wrong: list[int]) -> None:
    with pytest.raises(UserError, match="the head has 3 classes"):
        labels_of(torch.tensor(wrong))


def test_shares_of_classes_have_one_imagined_image_of_each() -> None:
    torch.testing.assert_close(class_shares(torch.tensor([0, 0, 1, -1]), 3), torch.tensor([3.0, 2.0, 1.0]) / 6)


# ---- consistency ----


def test_what_was_believed_counts_only_after_the_step() -> None:
    """A step that is thrown away leaves no trace."""
    joint = Joint(model_with("expected"), [labels := labels_of(few(4))], consistency=only(pseudo_labels=1.0))
    before = labels.seen.clone()
    step(joint)
    assert torch.equal(labels.seen, before)
    joint.after_step(0)
    assert not torch.equal(labels.seen, before)
    after = labels.seen.clone()
    joint.after_step(1)  # a step without beliefs
    assert torch.equal(labels.seen, after)


def test_the_classes_that_are_believed_too_often_are_remembered() -> None:
    labels = labels_of(few(4), "softmax")
    with torch.no_grad():
        labels.head.scores.beta.zero_()  # type: ignore[union-attr]
        labels.head.scores.bias.copy_(torch.tensor([9.0, 0.0, 0.0]))  # type: ignore[union-attr]
    for _ in range(600):
        labels.believe(torch.zeros(3, J))
        labels.after_step()
    torch.testing.assert_close(labels.seen, torch.tensor([1.0, 0.0, 0.0]), atol=5e-3, rtol=0)


def test_labelled_images_have_no_pseudo_labels() -> None:
    how = only(pseudo_labels=1.0)
    assert not any(
        "pseudo" in name for name in step(Joint(model_with("expected"), [labels_of()], consistency=how)).terms
    )
    some = labels_of(few(4), threshold=0.0)
    terms = step(Joint(model_with("expected"), [some], consistency=how)).terms
    assert float(terms["labels_sure"]) == pytest.approx(1.0), "all that have none are sure at this threshold"


@pytest.mark.parametrize(("n_known", "share"), [(3, 1.0), (6, 1.0), (9, 3 / 9)])
def test_an_unlabelled_image_never_weighs_more_than_a_labelled_one(n_known: int, share: float) -> None:
    labels = labels_of(few(n_known), "softmax", wide=0.0, threshold=0.0)
    terms = step(Joint(model_with("expected"), [labels], consistency=only(pseudo_labels=1.0))).terms
    assert float(terms["labels"]) == pytest.approx(-math.log(3), rel=1e-5)  # every label has probability 1/3
    assert float(terms["labels_pseudo"]) == pytest.approx(-math.log(3) * share, rel=1e-5)


def test_the_averaged_weights_say_what_is_believed() -> None:
    labels = labels_of(few(4), "softmax", wide=3.0, threshold=0.6)
    joint = Joint(model_with("expected"), [labels], consistency=only(pseudo_labels=1.0))
    own = step(joint)
    joint.teacher = EMA(dict(joint.named_parameters()), 0.9)
    assert torch.equal(own.loss, step(joint).loss) and float(own.terms["labels_sure"]) > 0
    flat = {name: torch.zeros_like(p) if "beta" in name else p for name, p in joint.named_parameters()}
    joint.teacher.load(flat, 0)  # it believes nothing: no image is sure
    other = step(joint)
    assert float(other.terms["labels_sure"]) == 0 and not torch.equal(own.loss, other.loss)
    assert torch.equal(other.terms["labels"], own.terms["labels"]), "labels are learned by the weights themselves"


@pytest.mark.parametrize("head", ["svm", "softmax"])
def test_spread_labels_are_learned_by_their_shares(head: str) -> None:
    labels = labels_of(few(6), head)
    joint = Joint(model_with("expected"), [labels], consistency=only(spreading=2.0))
    assert "labels_spread" not in step(joint).terms, "not before the first epoch is over"
    joint.refresh(torch.randn(N, J, generator=torch.Generator().manual_seed(0)), torch.Generator().manual_seed(0))
    assert labels.responsibilities.shape == (N, 3)
    torch.testing.assert_close(labels.responsibilities.sum(1), torch.ones(N))
    assert torch.equal(labels.responsibilities[:6].argmax(1), EVERY[:6])
    result = step(joint)
    view = joint.encode(IMAGES, torch.Generator().manual_seed(3), ALL)
    (scores,) = labels.see([view])
    spread = (labels.responsibilities * labels.label_head.normalised(scores)).sum(1).mean()
    torch.testing.assert_close(result.terms["labels_spread"], spread.detach(), rtol=1e-4, atol=1e-4)
    gain = result.terms["labels"] + 2.0 * result.terms["labels_spread"]
    torch.testing.assert_close(result.loss, -labels.scale(0) * gain - labels.log_prior(0), rtol=1e-4, atol=1e-3)


def test_without_the_image_model_the_decoder_gets_no_gradient() -> None:
    joint = Joint(model_with("expected"), [labels_of(few(4))], consistency=only(pseudo_labels=1.0, contrastive=1.0))
    of = gradients(joint, step(joint).loss)
    assert all(float(g.abs().sum()) == 0 for name, g in of.items() if "decoder" in name)


@pytest.mark.parametrize("head", [BayesianSVM, Softmax])
def test_an_image_that_is_not_sure_makes_no_belief_stronger(head: type[BayesianSVM] | type[Softmax]) -> None:
    """Learned by hinges, its soft pseudo-label would draw the decision values of all classes to -1."""
    labels = Labels(head(2, 20), torch.full((8,), -1))
    scores = torch.randn(8, 20, generator=torch.Generator().manual_seed(0)).log_softmax(1).requires_grad_()
    pseudo = PseudoLabels(scores.detach().softmax(1), torch.zeros(8))
    gain = labels.learn(pseudo, labels.values, torch.ones(8, dtype=torch.bool), [scores], 0).gain
    if head is BayesianSVM:
        (gradient,) = torch.autograd.grad(gain, scores)
        assert float(gradient.abs().max()) < 1e-7
    torch.testing.assert_close(gain, (pseudo.label * scores.detach()).sum(1).mean())
