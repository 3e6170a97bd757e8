"""(11), (12): labels beside the bound, missing labels, and the parts by which unlabelled images pull."""

import math

import pytest
import torch
from torch import Tensor, nn

from semisight.data.image_set import ImageSet
from semisight.model.architecture import Architecture, Layer
from semisight.model.heads.labels import BayesianSVM, Softmax
from semisight.model.image_model import ImageModel
from semisight.objectives.contrastive import code_agreement
from semisight.objectives.image_objective import ImageObjective
from semisight.objectives.label_objective import LabelObjective, Pull, Xi, paper_xi
from semisight.objectives.label_spreading import Propagation, balanced
from semisight.objectives.step import Batch, Rows, Step
from semisight.training.ema import AveragedWeights

TINY = Architecture((1, 8, 8), (Layer(4, 3, 2), Layer(5, 2)), nonlinearity="relu")
N = 24
ALL = Rows(0, N, N)


def objective(
    xi: float = 10.0, pull: Pull | None = None, labels: Tensor | None = None, head: str = "svm"
) -> LabelObjective:
    images = ImageObjective(ImageModel.of(TINY, seed=1))
    n = TINY.code_size
    seed = torch.Generator().manual_seed(2)
    label_head: nn.Module = BayesianSVM(n, 3, generator=seed) if head == "svm" else Softmax(n, 3, generator=seed)
    return LabelObjective(images, label_head, torch.arange(N) % 3 if labels is None else labels, Xi(xi), pull)


def step(of: nn.Module, labels: Tensor | None, rows: Rows = ALL) -> Step:
    images = torch.rand(N, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    here = slice(rows.start, rows.stop)
    batch = Batch(images[here], torch.arange(N)[here], None if labels is None else labels[here])
    result: Step = of(batch, torch.Generator().manual_seed(3), rows)
    return result


def gradients(of: nn.Module, result: Step) -> dict[str, Tensor]:
    of.zero_grad()
    result.loss.backward()
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in of.named_parameters()}


def test_xi_zero_is_the_bound_on_images_alone() -> None:
    joint, alone = objective(xi=0.0), ImageObjective(ImageModel.of(TINY, seed=1))
    a, b = step(joint, torch.arange(N) % 3), step(alone, None)
    torch.testing.assert_close(a.loss, b.loss)
    ga, gb = gradients(joint, a), gradients(alone, b)
    for name, gradient in gb.items():
        torch.testing.assert_close(ga[f"images.{name}"], gradient)
    assert all(float(g.abs().sum()) == 0 for n, g in ga.items() if n.startswith("head"))


@pytest.mark.parametrize("head", ["svm", "softmax"])
def test_a_missing_label_contributes_nothing(head: str) -> None:
    of = objective(head=head, labels=torch.full((N,), -1))
    none, absent = step(of, torch.full((N,), -1)), step(of, None)
    assert torch.equal(none.loss, absent.loss)
    assert float(none.terms["side"]) == 0
    without = gradients(of, none)
    assert float(without["head.scores.beta"].abs().sum()) == 0
    labels = torch.full((N,), -1)
    labels[5] = 1
    assert float(step(of, labels).terms["side"]) != 0


def test_the_side_term_is_xi_times_the_head_s() -> None:
    of = objective(xi=7.0)
    labels = torch.arange(N) % 3
    result = step(of, labels)
    assert float(result.terms["side"]) == pytest.approx(7 * float(result.terms["label"]), rel=1e-5)
    assert float(result.terms["bound"]) == pytest.approx(
        float(result.terms["reconstruction"] - result.terms["kl_s"] - result.terms["kl_z"] + result.terms["side"]),
        rel=1e-5,
    )


def test_xi_of_the_paper_and_its_warm_up() -> None:
    assert paper_xi(784, 10, 0.5) == pytest.approx(156.8)
    assert Xi(8.0, warmup=4).at(0) == 2.0
    assert Xi(8.0, warmup=4).at(100) == 8.0
    assert Xi(8.0).at(0) == 8.0


@pytest.mark.parametrize("head", ["svm", "softmax"])
def test_every_parameter_is_pulled(head: str) -> None:
    labels = torch.where(torch.arange(N) < 6, torch.arange(N) % 3, -1)
    of = objective(pull=Pull(bound_images=8), labels=labels, head=head)
    torch.nn.init.normal_(of.head.scores.beta)  # type: ignore[union-attr, arg-type]
    images = ImageSet.of(torch.rand(N, 1, 8, 8), tuple(map(str, range(N))), labels, ("a", "b", "c"))
    of.refresh(images, torch.full((3,), 1 / 3), torch.Generator().manual_seed(0))
    result = step(of, labels)
    assert {"label", "confident", "sure", "agreement", "latent", "bound"} <= result.terms.keys()
    for name, gradient in gradients(of, result).items():
        assert float(gradient.abs().sum()) > 0, name


def test_without_the_image_model_the_decoder_gets_no_gradient() -> None:
    of = objective(pull=Pull(bound_images=0, latent=0))
    assert all(
        float(g.abs().sum()) == 0 for n, g in gradients(of, step(of, torch.arange(N) % 3)).items() if "decoder" in n
    )


def test_validation_is_the_paper_s_bound_whatever_pulls() -> None:
    pulled, plain = objective(pull=Pull()).eval(), objective().eval()
    torch.testing.assert_close(step(pulled, torch.arange(N) % 3).loss, step(plain, torch.arange(N) % 3).loss)


def test_agreement_is_a_bounded_measure_of_how_alike_pairs_are() -> None:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randn(64, 128, generator=generator)
    other = torch.randn(64, 128, generator=generator)
    most = math.log(127)
    assert most - 0.1 < float(code_agreement(codes, codes, 0.1)) <= most
    assert abs(float(code_agreement(codes, other, 0.1))) < 1.0
    near = code_agreement(codes, codes + 0.3 * other, 0.1)
    assert float(code_agreement(codes, codes + other, 0.1)) < float(near)


def two_moons(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    angle = torch.rand(n, generator=generator) * math.pi
    first = torch.stack([angle.cos(), angle.sin()], 1)
    second = torch.stack([1 - angle.cos(), 0.5 - angle.sin()], 1)
    labels = (torch.arange(n) % 2).long()
    points = torch.where(labels[:, None] == 0, first, second) + 0.06 * torch.randn(n, 2, generator=generator)
    return points, labels


def test_labels_spread_along_two_moons() -> None:
    """Each moon bends around the other: no straight line from the labels would do. Codes are compared by angle, so
    the points are first lifted to features whose angles are their distances."""
    generator = torch.Generator().manual_seed(1)
    points, truth = two_moons(600, generator)
    frequencies = torch.randn(2, 400, generator=generator) * 4
    codes = torch.cat([(points @ frequencies).cos(), (points @ frequencies).sin()], 1)
    labels = torch.full((600,), -1)
    labels[:6] = truth[:6]
    for part in (600, 300):  # all in the graph, and half of them
        r = Propagation(part=part)(codes, labels, torch.tensor([0.5, 0.5]), generator)
        assert float((r.argmax(1) == truth).float().mean()) > 0.98
        torch.testing.assert_close(r.sum(1), torch.ones(600))
        assert torch.equal(r[:6].argmax(1), truth[:6])


def test_balance_gives_the_classes_their_shares() -> None:
    z = torch.rand(500, 3, generator=torch.Generator().manual_seed(0)) ** 3 * torch.tensor([5.0, 1.0, 1.0])
    shares = torch.tensor([0.2, 0.3, 0.5])
    r = balanced(z, shares)
    torch.testing.assert_close(r.sum(1), torch.ones(500))
    torch.testing.assert_close(r.mean(0), shares, atol=1e-3, rtol=0)


@pytest.mark.parametrize("n_known", [N, 4])
def test_processes_add_up_to_one(n_known: int) -> None:
    """Halves of a batch, each with its rows, learn what the whole would, though all labelled images are in the first
    (but for agreement, which looks at the rows at hand)."""
    labels = torch.where(torch.arange(N) < n_known, torch.arange(N) % 3, -1)
    of = objective(pull=Pull(agreement=0.0, threshold=0.35, bound_images=8), labels=labels, head="softmax")
    torch.nn.init.normal_(of.head.scores.beta)  # type: ignore[union-attr, arg-type]
    images = ImageSet.of(torch.rand(N, 1, 8, 8), tuple(map(str, range(N))), labels, ("a", "b", "c"))
    of.refresh(images, torch.full((3,), 1 / 3), torch.Generator().manual_seed(0))
    whole = step(of, labels)
    gradient = gradients(of, whole)
    halves = [step(of, labels, Rows(0, 12, N)), step(of, labels, Rows(12, N, N))]
    assert halves[0].terms.keys() == halves[1].terms.keys() == whole.terms.keys()
    for name, term in whole.terms.items():
        if name != "alpha0":
            torch.testing.assert_close((halves[0].terms[name] + halves[1].terms[name]) / 2, term, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close((halves[0].loss + halves[1].loss) / 2, whole.loss, rtol=1e-4, atol=1e-3)
    of_halves = [gradients(of, half) for half in halves]
    for name, both in gradient.items():
        torch.testing.assert_close((of_halves[0][name] + of_halves[1][name]) / 2, both, rtol=1e-3, atol=1e-3)


def test_what_was_said_counts_only_after_the_step() -> None:
    """A step that is thrown away leaves no trace."""
    labels = torch.where(torch.arange(N) < 4, torch.arange(N) % 3, -1)
    of = objective(pull=Pull(agreement=0.0, latent=0.0, bound_images=0), labels=labels)
    torch.nn.init.normal_(of.head.scores.beta)  # type: ignore[union-attr, arg-type]
    before = of.seen.clone()
    step(of, labels)
    assert torch.equal(of.seen, before)
    of.after_step(0)
    assert not torch.equal(of.seen, before)


def test_labelled_images_have_no_targets_but_their_labels() -> None:
    of = objective(pull=Pull(agreement=0.0, latent=0.0, bound_images=0, threshold=0.0))
    assert "confident" not in step(of, torch.arange(N) % 3).terms
    labels = torch.where(torch.arange(N) < 4, torch.arange(N) % 3, -1)
    of = objective(pull=Pull(agreement=0.0, latent=0.0, bound_images=0, threshold=0.0), labels=labels)
    assert float(step(of, labels).terms["sure"]) == pytest.approx(1.0)


@pytest.mark.parametrize(("n_known", "share"), [(4, 1.0), (12, 1.0), (18, 6 / 18)])
def test_an_unlabelled_image_never_weighs_more_than_a_labelled_one(n_known: int, share: float) -> None:
    labels = torch.where(torch.arange(N) < n_known, torch.arange(N) % 3, -1)
    of = objective(pull=Pull(agreement=0.0, latent=0.0, bound_images=0, threshold=0.0), labels=labels, head="softmax")
    torch.nn.init.zeros_(of.head.scores.beta)  # type: ignore[union-attr, arg-type]
    terms = step(of, labels).terms  # every label of every image has probability 1/3
    assert float(terms["label"]) == pytest.approx(-math.log(3), rel=1e-5)
    assert float(terms["confident"]) == pytest.approx(-math.log(3) * share, rel=1e-5)


def test_averaged_weights_say_what_is_believed() -> None:
    labels = torch.where(torch.arange(N) < 4, torch.arange(N) % 3, -1)
    of = objective(pull=Pull(agreement=0.0, latent=0.0, bound_images=0, threshold=0.6), labels=labels, head="softmax")
    torch.nn.init.normal_(of.head.scores.beta, std=3)  # type: ignore[union-attr, arg-type]
    own = step(of, labels)
    of.averages = AveragedWeights(dict(of.named_parameters()), 0.9)
    same = step(of, labels)
    assert torch.equal(own.loss, same.loss) and float(own.terms["sure"]) > 0
    flat = {name: torch.zeros_like(p) if "beta" in name else p for name, p in of.named_parameters()}
    of.averages.load(flat, 0)  # they believe nothing: no image is sure, and moved images are to have equal labels
    other = step(of, labels)
    assert float(other.terms["sure"]) == 0 and not torch.equal(own.loss, other.loss)
    assert torch.equal(other.terms["label"], own.terms["label"]), "labels are learned by the weights themselves"
