"""Beyond the paper: the contrastive term, label spreading, which images enter the bound, and the weights of all."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from semisight.data.augment import Augment
from semisight.errors import UserError
from semisight.objectives.consistency import Consistency
from semisight.objectives.contrastive import contrastive
from semisight.objectives.joint import Joint
from semisight.objectives.label_spreading import LabelSpreading, balanced
from semisight.objectives.step import Batch, Rows, Step
from tests.objectives.cases import ALL, IMAGES, N, gradients, model_with, only, step, target_of


def test_the_contrastive_term_is_a_bounded_measure_of_how_alike_pairs_are() -> None:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randn(64, 128, generator=generator)
    other = torch.randn(64, 128, generator=generator)
    most = math.log(127)
    assert most - 0.1 < float(contrastive(codes, codes, 0.1)) <= most
    assert abs(float(contrastive(codes, other, 0.1))) < 1.0
    near = contrastive(codes, codes + 0.3 * other, 0.1)
    assert float(contrastive(codes, codes + other, 0.1)) < float(near)


def test_the_contrastive_term_is_its_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 3, 5, generator=generator).double()
    codes = [*first, *second]
    total = 0.0
    for i in range(6):
        near = [float(torch.cosine_similarity(codes[i], codes[j], 0)) / 0.2 for j in range(6)]
        rest = sum(math.exp(near[j]) for j in range(6) if j != i)
        total += near[(i + 3) % 6] - math.log(rest)
    assert float(contrastive(first, second, 0.2)) == pytest.approx(total / 6 + math.log(5), abs=1e-9)


def test_two_views_differ_and_the_contrastive_term_is_theirs_once() -> None:
    """In the units of the first target, whatever others there are."""
    targets = [target_of("softmax"), target_of("tags-svm")]
    joint = Joint(model_with("expected"), targets, consistency=only(contrastive=3.0, augment=Augment()))
    result = step(joint)
    assert math.isfinite(float(result.terms["contrastive"])) and float(result.terms["contrastive"]) < math.log(
        2 * N - 1
    )
    generator = torch.Generator().manual_seed(3)
    views = []
    for _ in range(2):
        images = Augment().of_rows(IMAGES, generator, 1.3, N, 0)
        views.append(joint.encode(images, generator, ALL))
    assert not torch.equal(views[0].mean, views[1].mean)
    term = contrastive(views[0].mean, views[1].mean, 0.2)
    torch.testing.assert_close(result.terms["contrastive"], term.detach())
    gains = [t.scale(0) * t.gain(t.rows(torch.arange(N), generator, ALL), t.see(views), 0)[0] for t in targets]
    expected = -sum(gains) - targets[0].scale(0) * 3.0 * term - sum(t.log_prior(0) for t in targets)
    torch.testing.assert_close(result.loss, expected, rtol=1e-4, atol=1e-2)


# ---- label spreading ----


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
        r = LabelSpreading(part=part)(codes, labels, torch.tensor([0.5, 0.5]), generator)
        assert float((r.argmax(1) == truth).float().mean()) > 0.98
        torch.testing.assert_close(r.sum(1), torch.ones(600))
        assert torch.equal(r[:6], torch.nn.functional.one_hot(truth[:6], 2).float()), "what is known stays"


def test_balance_gives_the_classes_their_shares() -> None:
    z = torch.rand(500, 3, generator=torch.Generator().manual_seed(0)) ** 3 * torch.tensor([5.0, 1.0, 1.0])
    shares = torch.tensor([0.2, 0.3, 0.5])
    r = balanced(z, shares)
    torch.testing.assert_close(r.sum(1), torch.ones(500))
    torch.testing.assert_close(r.mean(0), shares, atol=1e-3, rtol=0)


# ---- the bound beside it ----


@pytest.mark.parametrize(("bound_images", "n"), [(0, 0), (1, 1), (4, 4), (N, N), (99, N), (None, N)])
def test_so_many_images_of_a_batch_enter_the_bound_unaugmented(bound_images: int | None, n: int) -> None:
    """The last of the batch, as a mean over them; their gradient alone reaches the pixels through it."""
    alone = Joint(model_with("expected"), [target_of("softmax")], consistency=only(bound_images=0, augment=Augment()))
    both = Joint(
        model_with("expected"), [target_of("softmax")], consistency=only(bound_images=bound_images, augment=Augment())
    )
    loss, without = step(both), step(alone)
    if not n:
        assert torch.equal(loss.loss, without.loss) and "bound" not in loss.terms
        return
    generator = torch.Generator().manual_seed(3)
    images = both.consistency.augment.of_rows(IMAGES, generator, 1.3, N, 0)  # type: ignore[union-attr]
    both.encode(images, generator, ALL)
    of_images = Joint(model_with("expected"))
    last: Step = of_images(Batch(IMAGES[N - n :], torch.arange(N - n, N)), generator, Rows(N - n, N, N))
    torch.testing.assert_close(loss.loss - without.loss, last.loss, rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(loss.terms["bound"], last.terms["bound"], rtol=1e-5, atol=1e-3)
    assert {"reconstruction", "kl_s", "kl_z", "alpha0"} <= loss.terms.keys()

    pixels = IMAGES.clone().requires_grad_()
    (by_both,) = torch.autograd.grad(step(both, images=pixels).loss, pixels)
    (by_one,) = torch.autograd.grad(step(alone, images=pixels).loss, pixels)
    entered = (by_both - by_one).flatten(1).abs().sum(1) > 0
    assert entered.tolist() == [i >= N - n for i in range(N)]


@pytest.mark.parametrize("count", [1, 4, 8, None])
def test_processes_share_the_images_of_the_bound(count: int | None) -> None:
    """Every process has a gradient for every parameter, also one that has none of these images."""
    joint = Joint(model_with("sampled"), [target_of("softmax")], consistency=only(bound_images=count))
    whole = step(joint)
    parts = [(step(joint, rows), rows) for rows in (Rows(0, 5, N), Rows(5, N, N))]
    for name in ("bound", "reconstruction", "kl_s", "kl_z"):
        mean = sum(part.terms[name] * rows.count for part, rows in parts) / N
        torch.testing.assert_close(mean, whole.terms[name], rtol=1e-4, atol=1e-2)
    for part, _ in parts:
        gradients(joint, part.loss)
        assert all(parameter.grad is not None for parameter in joint.parameters())


def test_augmented_images_are_what_targets_are_learned_on() -> None:
    still, moved = (
        step(Joint(model_with("expected"), [target_of("captions")], consistency=only(augment=augment)))
        for augment in (Augment(0, 0, 0, 0, 0, 0, 0), Augment())
    )
    assert float(still.terms["captions"]) != float(moved.terms["captions"])


@pytest.mark.parametrize(
    "wrong", [{"pseudo_labels": -1.0}, {"weak": math.nan}, {"strong": math.inf}, {"bound_images": -1}]
)
def test_settings_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        Consistency(**wrong)
