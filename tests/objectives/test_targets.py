"""(11), (12): the same checks for every target and every encoder, those that a user writes among them."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from semisight.data.augment import Augment
from semisight.errors import UserError
from semisight.model.posterior import Posterior, batch_last
from semisight.objectives.consistency import Consistency
from semisight.objectives.joint import Joint
from semisight.objectives.step import Rows, Step
from semisight.objectives.tags import Tags
from semisight.objectives.targets import Xi
from semisight.training.checkpoint import load_parts, read_checkpoint, write_checkpoint
from semisight.training.config import TrainConfig
from semisight.training.ema import EMA
from semisight.training.optimiser import build_optimiser
from semisight.training.state import LiveState
from tests.objectives.cases import (
    ALL,
    ENCODERS,
    EXACT,
    IMAGES,
    PIXELS,
    SOME,
    STILL,
    TARGETS,
    J,
    N,
    gradients,
    model_with,
    only,
    size_of,
    step,
    target_of,
)

every_target = pytest.mark.parametrize("kind", TARGETS)
every_encoder = pytest.mark.parametrize("encoder", ENCODERS)


# ---- the paper's setting ----


@every_target
@every_encoder
def test_a_missing_target_contributes_nothing_to_value_or_gradient(kind: str, encoder: str) -> None:
    """The loss is that of the images alone, the targets of the others, and the prior; so is the gradient by image."""
    target = target_of(kind)
    joint, alone = Joint(model_with(encoder), [target]), Joint(model_with(encoder))
    images = IMAGES.clone().requires_grad_()
    (of_joint,) = torch.autograd.grad(step(joint, images=images).loss, images)
    (of_alone,) = torch.autograd.grad(step(alone, images=images).loss, images)
    assert torch.equal(of_joint[~SOME], of_alone[~SOME])
    assert bool((of_joint - of_alone)[SOME].flatten(1).abs().sum(1).gt(0).all())

    code = torch.randn(N, J, generator=torch.Generator().manual_seed(0))
    side = target.side(target.rows(torch.arange(N), torch.Generator(), ALL), code, 0)
    assert bool((side.value[~SOME] == 0).all()) and bool((side.value[SOME] != 0).all())

    others = (~SOME).nonzero().squeeze(1)
    nothing = target.side(target.rows(others, torch.Generator(), Rows(0, 7, 7)), code[others], 0)
    assert float(nothing.log_prob) == 0
    if nothing.value.requires_grad:  # captions do not even ask the head
        assert all(float(g.abs().sum()) == 0 for g in gradients(target.head, nothing.value.sum()).values())


@every_target
@every_encoder
def test_xi_zero_is_the_bound_of_the_images_alone(kind: str, encoder: str) -> None:
    joint, alone = Joint(model_with(encoder), [target_of(kind, xi=Xi(0.0))]), Joint(model_with(encoder))
    a, b = step(joint), step(alone)
    assert torch.equal(a.loss, b.loss)
    of_joint, of_alone = gradients(joint, a.loss), gradients(alone, b.loss)
    for name, gradient in of_alone.items():
        torch.testing.assert_close(of_joint[name], gradient)
    assert all(float(g.abs().sum()) == 0 for name, g in of_joint.items() if name.startswith("targets"))


@every_target
@pytest.mark.parametrize("rho", [None, 0.25])
def test_xi_of_the_paper_weighs_every_number_of_a_target_like_one_of_the_image(kind: str, rho: float | None) -> None:
    model = model_with("expected")
    found = {}
    for name, xi in {"one": Xi(1.0), "paper": Xi(), "triple": Xi(times=3.0), "warming": Xi(warmup=4)}.items():
        target = target_of(kind, xi=xi)
        Joint(model, [target], rho=None if rho is None else {target.name: rho})
        rows = target.rows(torch.arange(N), torch.Generator().manual_seed(2), ALL)
        code = torch.randn(N, J, generator=torch.Generator().manual_seed(0))
        found[name] = target.side(rows, code, 0).value.detach()
        if name == "warming":
            torch.testing.assert_close(target.side(rows, code, 3).value.detach(), found["paper"])
            torch.testing.assert_close(target.side(rows, code, 99).value.detach(), found["paper"])
        sizes = size_of(target, rows)
    share = float(SOME.float().mean()) if rho is None else rho
    torch.testing.assert_close(found["paper"], found["one"] * PIXELS / (sizes * share))
    torch.testing.assert_close(found["triple"], 3 * found["paper"])
    torch.testing.assert_close(found["warming"], found["paper"] / 4)


@every_encoder
def test_together_targets_give_the_sum_of_what_each_gives_in_any_order(encoder: str) -> None:
    def difference(kinds: tuple[str, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        targets = [target_of(kind, torch.arange(N) % 3 != number % 3, name=kind) for number, kind in enumerate(kinds)]
        joint = Joint(model_with(encoder), targets)
        loss = step(joint).loss - step(Joint(model_with(encoder))).loss.detach()
        return loss.detach(), gradients(joint.model, loss)

    def known_as_in_the_whole(kind: str) -> tuple[Tensor, dict[str, Tensor]]:
        joint = Joint(model_with(encoder), [target_of(kind, torch.arange(N) % 3 != TARGETS.index(kind) % 3)])
        loss = step(joint).loss - step(Joint(model_with(encoder))).loss.detach()
        return loss.detach(), gradients(joint.model, loss)

    together, by_all = difference(TARGETS)
    alone = [known_as_in_the_whole(kind) for kind in TARGETS]
    torch.testing.assert_close(together, torch.stack([loss for loss, _ in alone]).sum(), rtol=1e-4, atol=1e-2)
    of_images = gradients((m := Joint(model_with(encoder))).model, step(m).loss)
    for name, gradient in by_all.items():
        summed = sum((by_one[name] - of_images[name] for _, by_one in alone), of_images[name])
        torch.testing.assert_close(gradient, summed, rtol=1e-3, atol=1e-3 * float(gradient.abs().max()), msg=name)

    def in_order(kinds: tuple[str, ...]) -> tuple[Tensor, dict[str, Tensor], set[str]]:
        made = {kind: target_of(kind, torch.arange(N) % 3 != TARGETS.index(kind) % 3, name=kind) for kind in TARGETS}
        joint = Joint(model_with(encoder), [made[kind] for kind in kinds])
        result = step(joint)
        return result.loss, gradients(joint.model, result.loss), set(result.terms)

    (a, of_a, names_a), (b, of_b, names_b) = in_order(TARGETS), in_order(TARGETS[::-1])
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-3)
    assert names_a == names_b >= set(TARGETS)
    for name in of_a:
        torch.testing.assert_close(of_a[name], of_b[name], rtol=1e-3, atol=1e-3 * float(of_a[name].abs().max()))


@every_target
@every_encoder
def test_every_parameter_receives_a_gradient(kind: str, encoder: str) -> None:
    for consistency in (None, Consistency(bound_images=4)):
        joint = Joint(model_with(encoder), [target_of(kind)], consistency=consistency)
        joint.refresh(torch.randn(N, J, generator=torch.Generator().manual_seed(0)), torch.Generator().manual_seed(0))
        for name, gradient in gradients(joint, step(joint).loss).items():
            assert float(gradient.abs().sum()) > 0, name


def test_two_targets_of_one_name_are_refused() -> None:
    with pytest.raises(UserError, match="two targets have the same name"):
        Joint(model_with("expected"), [target_of("svm"), target_of("softmax")])


@every_target
def test_validation_is_the_bound_alone_whatever_is_learned(kind: str) -> None:
    """Images of another set come then: their places say nothing about training targets."""
    alone = step(Joint(model_with("expected")).eval())
    for options in ({}, {"consistency": Consistency()}, {"frozen": True}):
        joint = Joint(model_with("expected"), [target_of(kind)], **options).eval()
        result = step(joint)
        assert torch.equal(result.loss, alone.loss) and result.terms.keys() == alone.terms.keys()


@every_target
@every_encoder
def test_on_a_frozen_image_model_only_the_head_learns_and_pixels_do_not_count(kind: str, encoder: str) -> None:
    joint = Joint(model_with(encoder), [target := target_of(kind)], frozen=True)
    result = step(joint)
    for name, gradient in gradients(joint, result.loss).items():
        assert (float(gradient.abs().sum()) > 0) == name.startswith("targets.0.head"), name
    code = joint.encode(IMAGES, torch.Generator().manual_seed(3), ALL).code.detach()
    one = target_of(kind, xi=Xi(1.0))
    generator = torch.Generator().manual_seed(3)
    joint.encode(IMAGES, generator, ALL)
    rows = one.rows(torch.arange(N), generator, ALL)
    side = one.side(rows, code, 0).value / size_of(one, rows)  # N_X and rho are left out
    torch.testing.assert_close(result.terms["side"], side.detach().mean(), rtol=1e-4, atol=1e-5)
    prior = target.log_prior(0)
    torch.testing.assert_close(result.loss, -side.mean() - prior, rtol=1e-4, atol=1e-5)


# ---- several processes ----


def of_processes(joint: Joint, cuts: tuple[int, ...]) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradient of a batch shared by processes, each weighing as many rows as it has."""
    loss, total = torch.zeros(()), {name: torch.zeros_like(p) for name, p in joint.named_parameters()}
    for start, stop in zip((0, *cuts), (*cuts, N), strict=True):
        part = step(joint, Rows(start, stop, N)).loss * (stop - start) / N
        loss = loss + part.detach()
        total = {name: total[name] + gradient for name, gradient in gradients(joint, part).items()}
    return loss, total


@pytest.mark.parametrize("consistent", [False, True], ids=["paper", "consistency"])
@every_target
@every_encoder
def test_processes_add_up_to_one(kind: str, encoder: str, consistent: bool) -> None:
    """Also where the first has every target, and the last all images that enter the bound. (But for the contrastive
    term, which looks at the rows at hand.)"""
    how = Consistency(contrastive=0.0, bound_images=4) if consistent else None
    joint = Joint(model_with(encoder), [target_of(kind)], consistency=how)
    joint.refresh(torch.randn(N, J, generator=torch.Generator().manual_seed(0)), torch.Generator().manual_seed(0))
    whole = step(joint).loss
    by_one = gradients(joint, whole)
    for cuts in ((6,), (5, 9)):
        loss, by_many = of_processes(joint, cuts)
        torch.testing.assert_close(loss, whole.detach(), rtol=1e-4, atol=1e-2)
        for name, gradient in by_one.items():
            near = 1e-3 * float(gradient.abs().max()) + 1e-6
            torch.testing.assert_close(by_many[name], gradient, rtol=1e-3, atol=near, msg=name)


# ---- consistency ----


def spread_out(n: int, sigma: float) -> Posterior:
    """q(s | X) of n images, with codes as wide as sigma."""
    generator = torch.Generator().manual_seed(7)
    mu = torch.randn(J, 1, 1, n, generator=generator)
    log_sigma = torch.full_like(mu, math.log(sigma))
    return Posterior(mu, log_sigma, mu + sigma * torch.randn(mu.shape, generator=generator))


@every_target
def test_the_gain_is_the_expectation_of_the_side(kind: str) -> None:
    """Exact where the head has a closed form, a lower bound that becomes exact for the Jensen bounds, and for the
    others the side of the drawn codes."""
    target = target_of(kind)
    target.balance(PIXELS, target.rho)
    rows = target.rows(torch.arange(N), torch.Generator().manual_seed(2), ALL)

    def gain(view: Posterior) -> float:
        return float(target.scale(0) * target.gain(rows, target.see([view]), 0)[0].detach())

    def side(code: Tensor) -> float:
        return float(target.side(rows, code, 0).value.detach().mean())

    certain = spread_out(N, 1e-6)
    assert gain(certain) == pytest.approx(side(certain.mean), rel=1e-3)
    wide, generator = spread_out(N, 0.7), torch.Generator().manual_seed(1)
    drawn = [side(wide.mean + 0.7 * torch.randn(N, J, generator=generator)) for _ in range(2000)]
    mean, error = torch.tensor(drawn).mean(), torch.tensor(drawn).std() / 2000**0.5
    if kind in ("svm", "tags-svm"):
        assert abs(gain(wide) - float(mean)) < 4 * float(error)
    elif kind in ("softmax", "tags-logistic"):
        assert gain(wide) < float(mean) - 4 * float(error), "a bound of a bound"
        assert gain(wide) > 3 * float(mean)  # both are negative
    else:
        assert gain(wide) == pytest.approx(side(wide.code), rel=1e-5)
    views = [wide, certain]
    both = target.scale(0) * target.gain(rows, target.see(views), 0)[0]
    assert float(both.detach()) == pytest.approx((gain(wide) + gain(certain)) / 2, rel=1e-4)


@every_target
def test_a_missing_target_contributes_nothing_to_the_gain(kind: str) -> None:
    target, view = target_of(kind), spread_out(N, 0.7)
    mu = view.mu.clone().requires_grad_()
    view = Posterior(mu, view.log_sigma, mu + (view.s - view.mu))
    rows = target.rows(torch.arange(N), torch.Generator(), ALL)
    (gradient,) = torch.autograd.grad(target.gain(rows, target.see([view]), 0)[0], mu)
    assert bool((gradient[..., ~SOME] == 0).all()) and bool((gradient[..., SOME] != 0).any(0).all())


@every_target
@every_encoder
def test_consistency_without_its_parts_is_the_gain_and_the_prior(kind: str, encoder: str) -> None:
    """With augmentation that changes nothing. The prior has the paper's sign and weight: a smaller beta is likelier."""
    joint = Joint(model_with(encoder), [target := target_of(kind)], consistency=only())
    generator = torch.Generator().manual_seed(3)
    STILL.of_rows(IMAGES, generator, 1.3, N, 0)
    view = joint.encode(IMAGES, generator, ALL)
    gain = target.gain(target.rows(torch.arange(N), generator, ALL), target.see([view]), 0)[0]
    result = step(joint)
    torch.testing.assert_close(result.loss, -target.scale(0) * gain - target.log_prior(0), rtol=1e-4, atol=1e-3)
    with_prior, without = gradients(joint, result.loss), gradients(joint, -target.scale(0) * gain)
    for name, parameter in joint.named_parameters():
        if name.endswith("beta"):
            assert float(((with_prior[name] - without[name]) * parameter.detach()).sum()) > 0, "it pulls to zero"


class TwoKinds(Augment):
    """Weak augmentation turns every image into one picture, strong into another: whoever looks tells them apart."""

    def of_rows(self, images: Tensor, generator: torch.Generator, strength: float, total: int, start: int) -> Tensor:
        assert strength in (0.4, 1.3)
        return picture(strength == 0.4)[start : start + len(images)]


def picture(weak: bool) -> Tensor:
    return torch.rand(N, 1, 8, 8, generator=torch.Generator().manual_seed(11 if weak else 12))


@every_target
@pytest.mark.parametrize("encoder", EXACT)
def test_pseudo_targets_are_the_teacher_s_of_the_weak_view_and_learned_on_the_strong_one(
    kind: str, encoder: str
) -> None:
    joint = Joint(
        model_with(encoder), [target := target_of(kind)], consistency=only(pseudo_labels=2.0, augment=TwoKinds())
    )
    teacher = Joint(model_with(encoder), [other := target_of(kind)])
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in teacher.named_parameters():
            # a little is much for a deep network: every image would be of one class
            size = 0.05 if encoder == "deep" and "encoder" in name else 0.3
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))
    joint.teacher = EMA(dict(joint.named_parameters()), 0.9)
    joint.teacher.load(dict(teacher.named_parameters()), updates=1)
    before = {name: parameter.detach().clone() for name, parameter in joint.named_parameters()}
    result = step(joint)
    assert all(torch.equal(parameter, before[name]) for name, parameter in joint.named_parameters())

    lacking = target.lacking()
    believed = other.believe(teacher.model.mean_code(picture(weak=True)[lacking], torch.Generator()))
    view = joint.encode(picture(weak=False), torch.Generator().manual_seed(3), ALL)
    generator = torch.Generator().manual_seed(3)
    joint.encode(picture(weak=False), generator, ALL)
    rows, seen = target.rows(torch.arange(N), generator, ALL), target.see([view])
    gain = target.gain(rows, seen, 0)[0] + 2.0 * target.learn(believed, rows, lacking, seen, 0).gain
    loss = -target.scale(0) * gain - target.log_prior(0)
    torch.testing.assert_close(result.loss, loss, rtol=1e-4, atol=1e-3)
    theirs, ours = gradients(joint, loss), gradients(joint, result.loss)
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-3, atol=1e-4 * float(gradient.abs().max()) + 1e-7)

    for wrong in (  # every other combination gives another loss: the check above can fail
        target.believe(joint.model.mean_code(picture(weak=True)[lacking], torch.Generator())),
        other.believe(teacher.model.mean_code(picture(weak=False)[lacking], torch.Generator())),
    ):
        gain = target.gain(rows, seen, 0)[0] + 2.0 * target.learn(wrong, rows, lacking, seen, 0).gain
        assert float(-target.scale(0) * gain - target.log_prior(0)) != pytest.approx(float(loss), rel=1e-4)


@every_target
def test_without_a_teacher_the_weights_themselves_believe(kind: str) -> None:
    def loss(with_teacher: bool) -> Tensor:
        joint = Joint(model_with("expected"), [target_of(kind)], consistency=only(pseudo_labels=1.0))
        joint.teacher = EMA(dict(joint.named_parameters()), 0.9) if with_teacher else None  # alike at its start
        return step(joint).loss

    assert torch.equal(loss(True), loss(False))


@every_target
def test_a_target_that_all_images_carry_has_no_pseudo_targets(kind: str) -> None:
    everywhere = torch.ones(N, dtype=torch.bool)

    def found(weight: float) -> Step:
        target = target_of(kind, everywhere)
        if isinstance(target, Tags):  # with every entry known
            target = Tags(target.head, target.values.clamp_min(0), threshold=0.6)
        return step(Joint(model_with("expected"), [target], consistency=only(pseudo_labels=weight)))

    with_them, without = found(1.0), found(0.0)
    assert torch.equal(with_them.loss, without.loss) and with_them.terms.keys() == without.terms.keys()


@every_target
def test_an_image_with_a_pseudo_target_never_weighs_more_than_one_that_carries_it(kind: str) -> None:
    """All together weigh as much as those that carry it, where they are more; else each weighs as much."""
    view, found = spread_out(N, 1e-6), {}
    for rho in (0.25, 0.5, 0.75):
        target = target_of(kind, xi=Xi(2.0))
        target.balance(PIXELS, rho)
        target.rho = rho  # of tags, the share of entries
        rows = target.rows(torch.arange(N), torch.Generator(), ALL)
        believed = target.believe(view.mean[~SOME])
        found[rho] = float(target.scale(0) * target.learn(believed, rows, ~SOME, target.see([view]), 0).gain.detach())
    assert found[0.25] != 0
    assert found[0.25] == pytest.approx(found[0.5] / 3, rel=1e-4)
    assert found[0.75] == pytest.approx(found[0.5], rel=1e-4)


def test_targets_in_consistency_keep_out_of_each_other_s_way() -> None:
    """Labels and captions together, each with pseudo-targets for the images that lack it."""
    other = torch.arange(N) % 2 == 0
    kinds = (("softmax", SOME), ("captions", other), ("tags-svm", other))
    joint = Joint(
        model_with("expected"), [target_of(k, known, name=k) for k, known in kinds], consistency=only(pseudo_labels=1.0)
    )
    together = step(joint)
    alone = [
        step(Joint(model_with("expected"), [target_of(k, known, name=k)], consistency=only(pseudo_labels=1.0)))
        for k, known in kinds
    ]
    # the captions that are drawn come after the view, which is the same for all
    torch.testing.assert_close(together.loss, torch.stack([one.loss for one in alone]).sum(), rtol=1e-4, atol=1e-2)
    for one in alone:
        for name, term in one.terms.items():
            torch.testing.assert_close(together.terms[name], term, rtol=1e-4, atol=1e-4)


# ---- checkpoints ----


def live(joint: Joint) -> LiveState:
    own = {name: parameter for name, parameter in joint.named_parameters() if parameter.requires_grad}
    return LiveState(joint, own, build_optimiser(own, joint.rate_multipliers(), TrainConfig()), EMA(own, 0.5))


@every_target
@every_encoder
def test_checkpoints_by_part(kind: str, encoder: str, tmp_path: Path) -> None:
    """`model` and `head.<name>` are what prediction needs, averaged; the rest is for resuming, to the last bit."""

    def build(seed: int = 1) -> Joint:
        joint = Joint(model_with(encoder), [target_of(kind)], consistency=Consistency(bound_images=4))
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in joint.parameters():
                parameter.add_(0.01 * torch.randn(parameter.shape, generator=generator))
        return joint

    def train(state: LiveState, steps: range) -> None:
        for number in steps:
            state.optimiser.zero_grad()
            step(state.objective, seed=number).loss.backward()  # type: ignore[arg-type]
            state.optimiser.step()
            state.objective.after_step(number)
            assert state.average is not None
            state.average.update()

    joint = build()
    joint.refresh(torch.randn(N, J, generator=torch.Generator().manual_seed(0)), torch.Generator().manual_seed(0))
    state = live(joint)
    joint.teacher = state.average
    train(state, range(3))
    path = tmp_path / "newest.safetensors"
    write_checkpoint(path, state.checkpoint({"about": {}}))
    head = f"head.{joint.targets[0].name}"
    kept = read_checkpoint(path)
    assert kept.tensors.keys() == {"model", head, "training"}
    assert not any(N in tensor.shape for part in ("model", head) for tensor in kept.part(part).values())

    # prediction: nothing but the two parts is in the file, and nothing but model and head are built
    alone = tmp_path / "alone.safetensors"
    write_checkpoint(alone, type(kept)({name: kept.part(name) for name in ("model", head)}, kept.meta))
    model, target = model_with(encoder), target_of(kind)
    load_parts({"model": model, head: target.head}, alone)
    rows = target.rows(torch.arange(N), torch.Generator(), ALL)
    assert state.average is not None
    with state.average.in_place():
        averaged = joint.model.encode(IMAGES, torch.Generator().manual_seed(0)).code
        score = joint.targets[0].side(rows, averaged, 0).log_prob  # type: ignore[operator]
    assert torch.equal(model.encode(IMAGES, torch.Generator().manual_seed(0)).code, averaged)
    assert torch.equal(target.side(rows, averaged, 0).log_prob, score)
    assert not torch.equal(joint.model.encode(IMAGES, torch.Generator().manual_seed(0)).code, averaged)

    # resuming
    again = live(build(seed=5))
    again.objective.teacher = again.average
    again.load(read_checkpoint(path), path)
    train(state, range(3, 5))
    train(again, range(3, 5))
    left, right = joint.state_dict(), again.module.state_dict()
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert torch.equal(value, right[name]), name


def test_the_mean_code_of_an_encoder_is_that_of_its_posterior() -> None:
    for encoder in EXACT:
        model = model_with(encoder)
        posterior = model.encoder(batch_last(IMAGES), model.noise(N, torch.Generator()))
        torch.testing.assert_close(model.mean_code(IMAGES, torch.Generator()), posterior.mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(model.code_moments(IMAGES)[1], posterior.log_spread, rtol=1e-5, atol=1e-6)


def test_a_decoder_of_another_code_is_refused() -> None:
    from semisight.model.image_model import ImageModel

    encoder: Any = model_with("network").encoder
    encoder.code_shape = (1, 2, 3)
    with pytest.raises(ValueError, match="the encoder gives codes of"):
        ImageModel(encoder, model_with("max").decoder)
