"""The chain as a whole: resumed bit for bit, right where the answer is known, clear about what it refuses."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from semisight.errors import UserError
from semisight.model.architecture import Architecture, Layer
from semisight.model.heads.labels import BayesianSVM
from semisight.model.image_model import ImageModel
from semisight.sampling.gibbs import GibbsChain, GibbsConfig, Sweep
from semisight.sampling.inference import InferenceConfig, gibbs_decisions, infer_latents
from semisight.sampling.latents import Latents, SweepOptions, posterior_latents, share_of_alpha0
from semisight.sampling.parameter_samples import ParameterSamples
from tests.sampling.oracle import (
    NO_Z,
    ONE_Z,
    TWO_Z,
    all_places,
    draw_images,
    exact_posterior,
    generator,
    hot,
    tiny_decoder,
    tiny_model,
)

CONFIG = GibbsConfig(burn_in=2, n_samples=3, every=2, seed=4, options=SweepOptions(batch_size=4))


def labelled_chain(
    config: GibbsConfig = CONFIG, change: float = 0.0, single: bool = False, precision: float = 1.0
) -> GibbsChain:
    decoder = tiny_decoder(TWO_Z)
    images = draw_images(decoder, 7, seed=1)
    images[0, 0, 0, 0] += change
    head = BayesianSVM(TWO_Z.code_size, 3, gamma=2.0, generator=generator(2), precision=precision).double()
    labels = torch.tensor([0, 1, 2, -1, 0, -1, 2])
    if single:
        return GibbsChain(decoder.float(), images.float(), config, labels, head.float())
    return GibbsChain(decoder, images, config, labels, head)


def everything(chain: GibbsChain) -> list[Tensor]:
    assert chain.head is not None and chain.lam is not None
    state = [*chain.decoder.state_dict().values(), *chain.head.state_dict().values()]
    return [*state, chain.latents.s, *chain.latents.places, chain.lam, chain.generator.get_state()]


@pytest.mark.parametrize("single", [True, False], ids=["float32", "float64"])
def test_a_resumed_chain_is_the_uninterrupted_one_bit_for_bit(tmp_path: Path, single: bool) -> None:
    whole = labelled_chain(single=single)
    expected = whole.run()
    first = labelled_chain(single=single)
    stop_after(first, 5)  # burn-in of 2, one sample kept, one sweep towards the next
    first.save(tmp_path / "chain.safetensors")
    second = labelled_chain(single=single)
    second.resume(tmp_path / "chain.safetensors")
    assert second.number == 5
    got = second.run()
    assert len(got) == len(expected) == 3
    assert all(torch.equal(a, b) for a, b in zip(everything(second), everything(whole), strict=True))
    assert all(torch.equal(got.decoder[name], values) for name, values in expected.decoder.items())
    assert got.head is not None and expected.head is not None
    assert all(torch.equal(got.head[name], values) for name, values in expected.head.items())


def stop_after(chain: GibbsChain, sweeps: int) -> None:
    """Runs a chain up to some sweep, as an interrupt would end it."""

    def interrupt(sweep: Sweep) -> None:
        if sweep.number == sweeps:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        chain.run(progress=interrupt)


def test_run_saves_as_it_goes_and_reports_every_sweep(tmp_path: Path) -> None:
    path = tmp_path / "chain.safetensors"
    seen: list[Sweep] = []
    samples = labelled_chain().run(progress=seen.append, save_to=path, save_every=100)
    assert [s.number for s in seen] == list(range(1, 9)) and seen[-1].kept == 3
    assert all(s.alpha0 > 0 and s.mean_square > 0 and s.total == 8 for s in seen)
    finished = labelled_chain()
    finished.resume(path)
    again = finished.run()  # nothing left to do
    assert all(torch.equal(again.decoder[name], values) for name, values in samples.decoder.items())
    more = labelled_chain(replace(CONFIG, n_samples=4))
    more.resume(path)  # a longer chain may go on from a shorter one
    assert len(more.run()) == 4


def test_the_same_seed_gives_the_same_chain_and_another_seed_another() -> None:
    one, two = labelled_chain().run(), labelled_chain().run()
    other = labelled_chain(replace(CONFIG, seed=5)).run()
    name = "dictionaries.0"
    assert torch.equal(one.decoder[name], two.decoder[name])
    assert not torch.equal(one.decoder[name], other.decoder[name])


def test_a_chain_whose_data_changed_is_refused(tmp_path: Path) -> None:
    chain = labelled_chain()
    chain.sweep()
    chain.save(tmp_path / "chain.safetensors")
    with pytest.raises(UserError, match="other images or labels"):
        labelled_chain(change=1e-9).resume(tmp_path / "chain.safetensors")
    changed = labelled_chain(replace(CONFIG, burn_in=3))
    with pytest.raises(UserError, match="config"):
        changed.resume(tmp_path / "chain.safetensors")
    with pytest.raises(UserError, match="labels"):
        labelled_chain(precision=2.0).resume(tmp_path / "chain.safetensors")
    with pytest.raises(UserError, match="no saved chain"):
        labelled_chain().resume(tmp_path / "nothing.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"not a chain")
    with pytest.raises(UserError, match="not a whole safetensors file"):
        labelled_chain().resume(tmp_path / "broken.safetensors")


@pytest.mark.parametrize(
    ("options", "anneal"),
    [(SweepOptions(), 0), (SweepOptions(largest_block=1, batch_size=77, share_above=0.5), 0), (SweepOptions(), 20)],
    ids=["plain", "by parts", "annealed"],
)
def test_inference_averages_to_the_exact_posterior(options: SweepOptions, anneal: int) -> None:
    """The same image many times over: chains in parallel give many samples; exact mean, variance and places."""
    architecture = TWO_Z
    decoder = tiny_decoder(architecture)
    image = draw_images(decoder, 1, seed=3)
    exact = exact_posterior(decoder, image[0])
    copies = image.expand(600, -1, -1, -1).contiguous()
    moments = infer_latents(decoder, copies, InferenceConfig(30, 20, 1, options, anneal), places=True)
    mean, second = moments.mean.mean(0), (moments.variance + moments.mean.square()).mean(0)
    error = moments.mean.std(0) / 600**0.5
    assert float(((mean - exact.code_mean) / error).abs().max()) < 4
    torch.testing.assert_close(second, exact.code_second_moment.diagonal(), rtol=0.1, atol=0.02)
    for l, places in enumerate(all_places(architecture)):
        for a in range(4):
            share = ((places == a).double() @ exact.probability).flatten()
            found = moments.frequency[l][a]
            error = found.std(-1).flatten() / 600**0.5
            assert float(((found.mean(-1).flatten() - share) / error.clamp_min(1e-4)).abs().max()) < 4.5


def test_annealing_reaches_likely_places_sooner_than_starting_at_full_precision() -> None:
    """Images with little noise, ten sweeps: what is left of the residual (0.26 and 0.17 when this was written)."""
    architecture = Architecture((1, 12, 12), (Layer(6, 4, 3), Layer(4, 2)))
    decoder = tiny_decoder(architecture)
    with torch.no_grad():
        decoder.log_alpha0.fill_(4.0)
    images, left = draw_images(decoder, 60, seed=4), []
    for anneal in (0, 8):
        last = infer_latents(decoder, images, InferenceConfig(9, 1, 0, anneal=anneal)).last
        mean = decoder(last.s, hot(architecture, last.places)).mean.detach()
        left.append(float((images.permute(1, 2, 3, 0) - mean).square().mean()))
    assert left[1] < 0.8 * left[0]


def test_alpha0_rises_by_equal_factors_and_then_stays() -> None:
    shares = [share_of_alpha0(sweep, rise=3) for sweep in range(6)]
    assert shares[0] == pytest.approx(0.02) and shares[3:] == [1.0, 1.0, 1.0]
    assert shares[1] / shares[0] == pytest.approx(shares[3] / shares[2])
    assert share_of_alpha0(0, rise=0) == 1.0


def test_inference_without_z_is_exact_gaussian_sampling() -> None:
    decoder = tiny_decoder(NO_Z)
    image = draw_images(decoder, 1, seed=3)
    exact = exact_posterior(decoder, image[0])
    moments = infer_latents(decoder, image.expand(500, -1, -1, -1), InferenceConfig(0, 4))
    error = exact.covariance[0].diagonal().sqrt() / 2000**0.5
    assert float(((moments.mean.mean(0) - exact.code_mean) / error).abs().max()) < 4


def test_inference_goes_on_from_an_encoder_s_draw_and_tells_its_progress() -> None:
    model = tiny_model(ONE_Z)
    images = draw_images(model.decoder, 5)
    start = posterior_latents(model.encode(images, generator()))
    seen: list[tuple[int, int]] = []
    config = InferenceConfig(1, 2, options=SweepOptions(batch_size=2))
    moments = infer_latents(
        model.decoder, images, config, start, progress=lambda done, total: seen.append((done, total))
    )
    assert seen[-1] == (15, 15) and len(seen) == 9
    assert moments.mean.shape == (5, ONE_Z.code_size) and moments.frequency == ()
    assert len(moments.last) == 5


def test_decisions_average_over_samples_of_the_parameters() -> None:
    chain = labelled_chain()
    samples = chain.run()
    images = draw_images(chain.decoder, 4, seed=9)
    config = InferenceConfig(2, 3)
    before = {name: value.clone() for name, value in chain.decoder.state_dict().items()}
    assert chain.head is not None
    decisions = gibbs_decisions(samples, chain.decoder, chain.head, images, config)
    assert all(torch.equal(before[name], value) for name, value in chain.decoder.state_dict().items())
    total = torch.zeros_like(decisions)
    for number in range(3):
        samples.load(number, chain.decoder, chain.head)
        total += chain.head.decision(infer_latents(chain.decoder, images, config).mean)
    torch.testing.assert_close(decisions, total / 3)
    assert decisions.shape == (4, 3)


def test_decisions_may_go_on_from_one_sample_of_the_parameters_to_the_next() -> None:
    """Chains that go on equal those run by hand, and many of them agree with chains that begin anew every time."""
    chain = labelled_chain()
    samples = chain.run()
    assert chain.head is not None
    images = draw_images(chain.decoder, 2, seed=9).repeat(100, 1, 1, 1)
    first, then = InferenceConfig(12, 4), InferenceConfig(4, 4, seed=7)
    going_on = gibbs_decisions(samples, chain.decoder, chain.head, images, first, then=then)
    last, total = None, torch.zeros_like(going_on)
    for number in range(3):
        samples.load(number, chain.decoder, chain.head)
        config = first if number == 0 else replace(then, seed=7 + number)
        moments = infer_latents(chain.decoder, images, config, last)
        last, total = moments.last, total + chain.head.decision(moments.mean)
    torch.testing.assert_close(going_on, total / 3)
    anew = gibbs_decisions(samples, chain.decoder, chain.head, images, InferenceConfig(12, 4, seed=99))
    apart = (going_on - anew).unflatten(0, (100, 2))  # the same two images, 100 times
    assert float((apart.mean(0) / (apart.std(0) / 100**0.5)).abs().max()) < 4.5


def test_a_chain_learns_labels_that_the_codes_can_tell() -> None:
    """Two kinds of images that differ by what one map paints; after a short chain new ones are told apart."""
    decoder = tiny_decoder(ONE_Z, alpha0=50.0)
    random = generator(1)
    kind = torch.arange(60) % 2
    pattern = torch.zeros(1, 3, 5, dtype=torch.float64)
    pattern[0, 1, 1:4] = 1.5
    noise = 0.15 * torch.randn(60, 1, 3, 5, generator=random, dtype=torch.float64)
    images = (2 * kind - 1)[:, None, None, None] * pattern + noise
    head = BayesianSVM(ONE_Z.code_size, 2, gamma=5.0).double()
    chain = GibbsChain(decoder, images[:40], GibbsConfig(burn_in=30, n_samples=3), kind[:40], head)
    decisions = gibbs_decisions(chain.run(), decoder, head, images[40:], InferenceConfig(10, 10))
    assert float((decisions.argmax(1) == kind[40:]).double().mean()) >= 0.9


def test_bad_input_is_refused_with_a_reason() -> None:
    decoder = tiny_decoder(ONE_Z)
    images = draw_images(decoder, 3)
    head = BayesianSVM(ONE_Z.code_size, 2).double()
    labels = torch.tensor([0, 1, -1])
    with pytest.raises(UserError, match="at least 1 sample"):
        GibbsConfig(n_samples=0)
    with pytest.raises(UserError, match="at least 1 sample"):
        InferenceConfig(n_samples=0)
    with pytest.raises(UserError, match="burn-in"):
        InferenceConfig(burn_in=-1)
    with pytest.raises(UserError, match="those of burn-in"):
        InferenceConfig(burn_in=3, anneal=4)
    with pytest.raises(UserError, match="at least 1 sweep"):
        GibbsConfig(every=0)
    with pytest.raises(UserError, match="beta at least once"):
        GibbsConfig(beta_steps=0)
    with pytest.raises(UserError, match="share_above"):
        SweepOptions(share_above=0.0)
    with pytest.raises(UserError, match="label head"):
        GibbsChain(decoder, images, CONFIG, labels)
    with pytest.raises(UserError, match="labels is missing"):
        GibbsChain(decoder, images, CONFIG, head=head)
    with pytest.raises(UserError, match="between -1"):
        GibbsChain(decoder, images, CONFIG, labels + 1, head)
    with pytest.raises(UserError, match="give one per image"):
        GibbsChain(decoder, images, CONFIG, labels[:2], head)
    with pytest.raises(UserError, match="channels, height, width"):
        GibbsChain(decoder, images[..., 1:], CONFIG)
    with pytest.raises(UserError, match="no images"):
        GibbsChain(decoder, images[:0], CONFIG)
    with pytest.raises(UserError, match="float images"):
        GibbsChain(decoder, (images * 255).long(), CONFIG)
    with pytest.raises(UserError, match="not finite"):
        GibbsChain(decoder, images / 0, CONFIG)
    with pytest.raises(UserError, match="latent variables for 2"):
        start = Latents(torch.zeros(3, 1, 2, 2).double(), (torch.zeros(2, 1, 2, 2, dtype=torch.uint8),))
        GibbsChain(decoder, images, CONFIG, latents=start)
    with pytest.raises(UserError, match="pooling='max'"):
        model = ImageModel.of(ONE_Z, pooling="max").double()
        GibbsChain(decoder, images, CONFIG, latents=posterior_latents(model.encode(images, generator())))
    chain = GibbsChain(decoder, images, CONFIG)
    with pytest.raises(UserError, match="no samples of the parameters are kept yet"):
        chain.samples()
    samples = chain.run()
    with pytest.raises(UserError, match="without labels"):
        gibbs_decisions(samples, decoder, head, images, InferenceConfig(0, 1))
    with pytest.raises(UserError, match="without labels"):
        gibbs_decisions(samples, decoder, None, images, InferenceConfig(0, 1))
    with pytest.raises(UserError, match="without labels"):
        samples.load(0, decoder, head)
    with pytest.raises(UserError, match="no samples of the parameters"):
        gibbs_decisions(ParameterSamples({}, {}), decoder, head, images, InferenceConfig(0, 1))


def test_running_means_of_codes_are_of_the_kept_samples_and_survive_a_resumption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, codes = labelled_chain(), []
    keep = GibbsChain.keep

    def noted(chain: GibbsChain) -> None:
        codes.append(chain.latents.codes.clone())
        keep(chain)

    monkeypatch.setattr(GibbsChain, "keep", noted)
    whole.run()
    assert len(codes) == 3 and torch.allclose(whole.mean_codes, torch.stack(codes).mean(0), atol=1e-9)
    first = labelled_chain()
    stop_after(first, 5)
    first.save(tmp_path / "chain.safetensors")
    second = labelled_chain()
    second.resume(tmp_path / "chain.safetensors")
    second.run()
    assert torch.equal(second.mean_codes, whole.mean_codes)
