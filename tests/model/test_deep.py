"""The deep encoder: batch normalisation that keeps its state out of forward, places from logits, any image size."""

import dataclasses
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from semisight.errors import UserError
from semisight.model.architecture import Architecture, Layer, preset, suggest_architecture
from semisight.model.encoders.deep import DeepEncoder
from semisight.model.heads.labels import Softmax
from semisight.model.image_model import ImageModel
from semisight.model.ops.batch_norm import BatchNorm, settle
from semisight.model.ops.places import choose_from_logits, draw_places
from semisight.model.posterior import batch_last
from semisight.objectives.consistency import Consistency
from semisight.objectives.joint import Joint
from semisight.objectives.labels import Labels
from semisight.objectives.step import Batch, Rows
from semisight.training.checkpoint import read_checkpoint
from semisight.training.config import TrainConfig
from semisight.training.trainer import Trainer
from tests.training.toy import ToyImages

SMALL = Architecture((1, 8, 8), (Layer(4, 3, 2, "same"), Layer(5, 4)))


def images(n: int = 24, shape: tuple[int, int, int] = (1, 8, 8), seed: int = 0) -> torch.Tensor:
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed))


def small_model(seed: int = 0) -> ImageModel:
    model = ImageModel.deep(SMALL, seed, width=0.25)
    model.start_from(images())
    return model


# ---- batch normalisation ----


def test_while_learning_the_batch_is_normalised_and_the_state_stays_until_the_step_is_over() -> None:
    x = 3 + 2 * torch.randn(16, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    norm, theirs = BatchNorm(3), torch.nn.BatchNorm2d(3)
    torch.testing.assert_close(norm(x), theirs(x))
    assert float(norm.mean.abs().sum()) == 0 and int(norm.steps) == 0
    settle(norm)
    torch.testing.assert_close(norm.mean, x.mean((0, 2, 3)))  # the first step is all there is to know
    torch.testing.assert_close(norm.variance, x.var((0, 2, 3), correction=0), rtol=1e-4, atol=1e-4)
    before = norm.mean.clone()
    norm(x + 1)
    settle(norm)
    torch.testing.assert_close(norm.mean, before + 0.9)  # the second has 9 in 10
    for _ in range(2000):
        norm.steps.add_(1)
    before = norm.mean.clone()
    norm(x - 5)
    settle(norm)
    torch.testing.assert_close(norm.mean, before + 0.01 * (x.mean((0, 2, 3)) - 5 - before), rtol=1e-4, atol=1e-4)


def test_a_step_that_is_thrown_away_leaves_nothing_behind() -> None:
    joint = Joint(small_model(), consistency=None)
    batch, rows = Batch(images(), torch.arange(24)), Rows(0, 24, 24)
    joint(Batch(images() * 0, torch.arange(24)), torch.Generator(), rows)  # no after_step follows
    joint(batch, torch.Generator(), rows)
    joint.after_step(0)
    other = Joint(small_model())
    other(batch, torch.Generator(), rows)
    other.after_step(0)
    for (name, a), (_, b) in zip(joint.model.named_buffers(), other.model.named_buffers(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("how", ["eval", "without a gradient", "frozen"])
def test_an_answer_does_not_depend_on_the_other_images(how: str) -> None:
    encoder = small_model().encoder
    assert isinstance(encoder, DeepEncoder)
    x, eps = batch_last(images()), torch.zeros(())
    learning = encoder.code(x, eps).mu
    settle(encoder)
    if how == "eval":
        encoder.eval()
    if how == "frozen":
        encoder.requires_grad_(False)
    with torch.set_grad_enabled(how != "without a gradient"):
        together, alone = encoder.code(x, eps).mu, encoder.code(x[..., :3], eps).mu
    torch.testing.assert_close(together[..., :3], alone)
    assert not torch.allclose(learning[..., :3], encoder.train().requires_grad_(True).code(x[..., :3], eps).mu)
    settle(encoder, keep=False)
    assert int(next(part for part in encoder.modules() if isinstance(part, BatchNorm)).steps) == 1


# ---- places ----


def test_places_are_drawn_with_the_probabilities_of_their_logits() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 2, 1, 1, 1, generator=generator).expand(4, 2, 1, 1, 40_000)
    uniform = torch.rand(2, 1, 1, 40_000, generator=generator)
    chosen = choose_from_logits(logits, uniform, through=False)
    q = logits.softmax(0)
    torch.testing.assert_close(chosen.z.mean(-1), q[..., 0], atol=0.01, rtol=0)
    assert torch.equal(chosen.z, draw_places(q.contiguous(), uniform))
    torch.testing.assert_close(chosen.negative_entropy, (q * q.log()).sum(0))
    torch.testing.assert_close(chosen.log_q_z, (chosen.z * q.log()).sum(0))


def test_the_gradient_of_z_reaches_the_logits_only_where_it_may() -> None:
    logits = torch.randn(4, 2, 3, 3, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    uniform, by = torch.rand(2, 3, 3, 5), torch.randn(4, 2, 3, 3, 5)
    (found,) = torch.autograd.grad((choose_from_logits(logits, uniform, True).z * by).sum(), logits)
    (wanted,) = torch.autograd.grad((logits.softmax(0) * by).sum(), logits)
    torch.testing.assert_close(found, wanted)
    assert not choose_from_logits(logits, uniform, False).z.requires_grad


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 30, 30), (1, 20, 33), (3, 96, 96)])
def test_any_size_of_image_has_places_and_a_code(shape: tuple[int, int, int]) -> None:
    architecture = suggest_architecture(shape, "norm-relu")
    model = ImageModel.deep(architecture, width=0.25)
    x = images(2, shape)
    posterior = model.encode(x, torch.Generator().manual_seed(0))
    for index, z in zip(architecture.pooled_layers, posterior.z, strict=True):
        layer, sizes = architecture.layers[index], architecture.shapes[index]
        assert z.shape == (layer.pool**2, layer.maps, *sizes.pooled, 2)
        assert bool((z.sum(0).round() == 1).all())
    assert posterior.mu.shape == (*architecture.code_shape, 2)
    assert model.reconstruct(x, torch.Generator()).shape == x.shape


def test_the_places_of_a_layer_come_from_the_pixels_around_them() -> None:
    """The logits of a block far from a changed corner stay what they are: the maps are not turned around."""
    encoder = DeepEncoder(preset("cifar-10"), width=0.25).eval()
    x = batch_last(images(1, (3, 32, 32)))
    changed = x.clone()
    changed[:, :4, :4] += 1
    of = [encoder.logits[0](encoder._maps(one))[0] for one in (x, changed)]
    moved = (of[0] - of[1]).detach().abs().amax(0)
    assert float(moved[:4, :4].max()) > 0 and float(moved[12:, :].max()) == 0 and float(moved[:, 12:].max()) == 0


def test_without_places_values_go_to_fixed_ones() -> None:
    model = ImageModel.deep(SMALL, places=False, width=0.25)
    assert not model.encoder.has_places and model.encode(images(3), torch.Generator()).z == ()


def test_a_width_of_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="width must be above 0"):
        DeepEncoder(SMALL, width=0)


def test_convolutions_have_their_channels_last_and_so_has_what_is_resumed(tmp_path: Path) -> None:
    """Also in the optimiser: a fused step reads a weight and its averages in one order."""
    run(tmp_path, 2)
    kept = read_checkpoint(tmp_path / "checkpoints" / "newest.safetensors")
    assert any("exp_avg/" in name for name in kept.part("training"))
    for module in small_model().encoder.modules():  # type: ignore[attr-defined]
        if isinstance(module, torch.nn.Conv2d):
            assert module.weight.is_contiguous(memory_format=torch.channels_last)


# ---- learning ----


def joint(seed: int = 0) -> Joint:
    labels = torch.where(torch.arange(24) < 12, torch.arange(24) % 3, -1)
    how = Consistency(contrastive=0, spreading=0, bound_images=8, bound_weight=0.1)
    model = small_model(seed)
    head = Softmax(model.code_size, 3, generator=torch.Generator().manual_seed(seed))
    return Joint(model, [Labels(head, labels, threshold=None, smoothing=0.1)], consistency=how)


def run(folder: Path, steps: int, resume: bool = False, **settings: object) -> Joint:
    given = {"max_epochs": None, "max_steps": steps, "batch_size": 12, "average_decay": 0.9, "weight_decay": 0.01}
    fixed = {"progress": False, "tensorboard": False, "threads": 1, "patience": None, "checkpoint_steps": 1}
    of = joint()
    trainer = Trainer(of, ToyImages(images()), folder, config=TrainConfig.from_dict({**given, **fixed, **settings}))
    trainer.fit(resume=resume)
    return of


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_a_resumed_run_equals_an_uninterrupted_one_to_the_last_bit(optimiser: str, tmp_path: Path) -> None:
    settings = {"optimiser": optimiser, "learning_rate": 0.01}
    run(tmp_path / "a", 3, **settings)
    run(tmp_path / "a", 6, resume=True, **settings)
    run(tmp_path / "b", 6, **settings)
    one, two = (read_checkpoint(tmp_path / name / "checkpoints" / "newest.safetensors") for name in "ab")
    assert one.tensors.keys() == two.tensors.keys() and any("norms.0.mean" in name for name in one.part("model"))
    for part in one.tensors:
        for name, value in one.part(part).items():
            assert torch.equal(value, two.part(part)[name]), f"{part}:{name}"
    steps = [value for name, value in one.part("model").items() if ".norms." in name and name.endswith(".steps")]
    assert {int(value) for value in steps} == {6}


def bars() -> torch.Tensor:
    """24 images of a bar, lying where the number is odd."""
    generator, x = torch.Generator().manual_seed(0), torch.zeros(24, 1, 8, 8)
    for n in range(24):
        at = int(torch.randint(8, (1,), generator=generator))
        x[n, 0, at if n % 2 else slice(None), slice(None) if n % 2 else at] = 1.0
    return x


def learn(of: Joint, x: torch.Tensor, steps: int) -> list[dict[str, float]]:
    optimiser, found = torch.optim.Adam(of.parameters(), 0.01), []
    for number in range(steps):
        result = of(Batch(x, torch.arange(24)), torch.Generator().manual_seed(number), Rows(0, 24, 24))
        optimiser.zero_grad()
        result.loss.backward()
        optimiser.step()
        of.after_step(number)
        found.append({name: float(term) for name, term in result.terms.items()})
    return found


def test_it_learns_labels_and_tells_them_by_its_running_statistics() -> None:
    x, labels = bars(), torch.arange(24) % 2
    model = ImageModel.deep(SMALL, width=0.25)
    model.start_from(x)
    head = Softmax(model.code_size, 2)
    of = Joint(model, [Labels(head, labels)], consistency=Consistency(0, 0, 0, strong=0.0, bound_weight=0.0))
    found = learn(of, x, 20)
    assert found[-1]["labels"] > -0.2 > found[0]["labels"]
    of.eval()
    assert (head.decision(model.mean_code(x, torch.Generator())).argmax(1) == labels).float().mean() > 0.9


def test_it_learns_images_and_their_places() -> None:
    x = bars()
    model = ImageModel.deep(SMALL, width=0.25)
    model.start_from(x)
    found = learn(Joint(model), x, 80)
    assert found[-1]["bound"] > found[0]["bound"] + 2 and found[-1]["kl_z"] > 0


def test_the_weight_of_the_bound_is_in_nats_per_number_of_the_image() -> None:
    batch, rows = Batch(images(), torch.arange(24)), Rows(0, 24, 24)

    def loss(weight: float) -> torch.Tensor:
        of = joint().eval().train()
        of.model.encoder.eval()  # type: ignore[attr-defined]
        assert of.consistency is not None
        of.consistency = dataclasses.replace(of.consistency, bound_weight=weight, bound_images=None)
        result = of(batch, torch.Generator().manual_seed(0), rows)
        bounds.append(result.terms.get("bound", torch.zeros(())))
        return result.loss.detach()

    bounds: list[torch.Tensor] = []
    without, half, whole = loss(0.0), loss(0.5), loss(1.0)
    torch.testing.assert_close(whole - without, 2 * (half - without), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(whole - without, -bounds[2] / 64, rtol=1e-3, atol=1e-3)
    assert float(bounds[0]) == 0, "with weight 0 the image model is left out"


def test_a_stage_is_the_plain_network_and_so_is_its_gradient() -> None:
    stage = small_model().encoder.stages[0]  # type: ignore[attr-defined]
    x = torch.randn(6, stage.first.in_channels, 8, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    (found,) = torch.autograd.grad(stage(x).square().sum(), x)

    def normalised(maps: torch.Tensor, number: int) -> torch.Tensor:
        norm = stage.norms[number]
        return F.gelu(F.batch_norm(maps, None, None, norm.weight, norm.bias, training=True, eps=1e-5))

    plain = normalised(F.conv2d(normalised(F.max_pool2d(stage.first(x), 2), 0), stage.second.weight, padding=1), 1)
    (wanted,) = torch.autograd.grad(plain.square().sum(), x)
    torch.testing.assert_close(found, wanted)


def test_the_stem_starts_by_whitening_patches_and_blows_up_no_direction_without_variance() -> None:
    generator = torch.Generator().manual_seed(0)
    grey = torch.rand(40, 1, 20, 20, generator=generator)
    x = torch.cat([grey, 0.5 * grey, 0.2 * grey + 0.1 * torch.rand(40, 1, 20, 20, generator=generator)], 1)
    model = ImageModel.deep(suggest_architecture((3, 20, 20), "norm-relu"))
    model.start_from(x)
    stem = model.encoder.stem  # type: ignore[attr-defined]
    filters = stem.weight.detach()
    torch.testing.assert_close(filters[:12], -filters[12:24])
    scaled = (x - x.mean(0)) / (x - x.mean(0)).square().mean().sqrt()
    maps = F.conv2d(scaled, filters[:12], stride=2).transpose(0, 1).flatten(1)
    covariance = maps @ maps.T / maps.shape[1]
    torch.testing.assert_close(covariance - covariance.diag().diag(), torch.zeros(12, 12), atol=1e-4, rtol=0)
    torch.testing.assert_close(covariance.diag()[:8], torch.ones(8), atol=0.05, rtol=0)
    assert float(covariance.diag()[8:].max()) < 1e-3, "the first two channels are one: four directions say nothing"
    assert float(filters.abs().max()) < 40


def test_convolutions_start_as_the_identity_as_far_as_there_are_maps_below() -> None:
    stage = small_model().encoder.stages[0]  # type: ignore[attr-defined]
    x = torch.randn(2, stage.first.in_channels, 6, 6, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(stage.first(x)[:, : x.shape[1]], x)
    maps = torch.randn(2, stage.maps, 6, 6, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(stage.second(maps), maps)
    if stage.maps > x.shape[1]:
        assert float(stage.first(x)[:, x.shape[1] :].detach().std()) > 0.1
