"""What a run says of a batch of images: labels with their range, captions with theirs, drawings, nearest images.

    s_i = mu + sigma eps_i,  i = 1 .. N_s        the same eps_i for every image

so that an answer does not depend on who else asked at the same time. A label's probability is that of the decision
value averaged over codes, as `semisight predict` gives it; its range is where it lies for nine codes in ten.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from semisight.errors import UserError
from semisight.inference.encode import check_answer
from semisight.inference.neighbours import Neighbour, Neighbours
from semisight.inference.search import WordSearch
from semisight.model.posterior import Noise, Posterior, batch_first, batch_last
from semisight.runs.pictures import Pixels, to_pixels
from semisight.runs.pixels import pixel_decoder
from semisight.runs.run import OWN_FEATURES, Run
from semisight.runs.run_images import network_of
from semisight.server.captions import Sentence, describer_of

N_CODES = 50
SHARE = 0.9  # of the codes between low and high
_DIGITS = 6


@dataclass(frozen=True)
class Question:
    """An image, uint8 [C, H, W], and what to say of it: the `top` most probable labels, and more."""

    pixels: npt.NDArray[np.uint8]
    top: int = 1000
    draw: bool = True
    nearest: int = 0
    captions: int = 0


@dataclass(frozen=True)
class LabelGuess:
    """spread is the standard deviation of the decision value over codes; low and high bound the probability."""

    label: str
    probability: float
    spread: float
    low: float
    high: float


@dataclass(frozen=True)
class Answer:
    """Labels, the most probable first (none if the run knows none), and what else was asked for."""

    labels: tuple[LabelGuess, ...] = ()
    captions: tuple[Sentence, ...] = ()
    drawing: Pixels | None = None
    nearest: tuple[Neighbour, ...] = ()


class Answerer:
    """A run, ready to be asked; `neighbours` arrive later, once the images of the run have been read."""

    def __init__(self, run: Run, seed: int = 0) -> None:
        self.run, self.describer = run, describer_of(run)
        self.neighbours: Neighbours | None = None
        self.search: WordSearch | None = None  # likewise, of a run that learned captions
        if run.backbone == OWN_FEATURES:
            raise UserError(
                f"{run.folder.path} learned on features of your own: a server could not make them of pictures."
            )
        self.backbone = network_of(run)
        self.pixels = pixel_decoder(run)
        generator = torch.Generator().manual_seed(seed)
        self._draws = 1 if run.model.encoder.mean_is_exact else N_CODES
        self._noises = [run.model.noise(1, generator) for _ in range(self._draws)]
        self._eps = torch.randn(N_CODES, 1, run.architecture.code_size, generator=generator).to(run.device)

    @torch.no_grad()
    def __call__(self, questions: Sequence[Question]) -> list[Answer]:
        pixels = torch.from_numpy(np.stack([question.pixels for question in questions]))
        if self.backbone is None:
            images = pixels.to(self.run.device, torch.float32).div_(255.0)
        else:  # of the plain view alone: an answer must not wait for more
            images = torch.from_numpy(self.backbone.features(pixels.numpy())).to(self.run.device)
        posteriors = [self._encode(images, noise) for noise in self._noises]
        codes = self._codes(posteriors)
        check_answer(codes)
        labels = self._labels(posteriors, codes, questions)
        drawings = self._drawings(posteriors[0], questions)
        nearest = self._nearest(posteriors[0].mean, questions)
        captions = self._captions(codes, questions)
        return [Answer(*parts) for parts in zip(labels, captions, drawings, nearest, strict=True)]

    def _encode(self, images: Tensor, noise: Noise) -> Posterior:
        n = len(images)
        posterior: Posterior = self.run.model.encoder(
            batch_last(images),
            Noise(noise.eps.expand(*noise.eps.shape[:-1], n), tuple(u.expand(*u.shape[:-1], n) for u in noise.uniform)),
        )
        return posterior

    def _codes(self, posteriors: Sequence[Posterior]) -> Tensor:
        """[N_s, B, J]"""
        means = torch.stack([posterior.mean for posterior in posteriors])
        spreads = torch.stack([posterior.log_spread for posterior in posteriors]).exp()
        return means + spreads * self._eps

    def _labels(
        self, posteriors: Sequence[Posterior], codes: Tensor, questions: Sequence[Question]
    ) -> list[tuple[LabelGuess, ...]]:
        if not self.run.has("labels"):
            return [()] * len(questions)
        reader = self.run.labels
        head, calibration, names = reader.head, reader.calibration, reader.class_names
        each = torch.stack([head.decision(posterior.mean) for posterior in posteriors])
        within = torch.stack([head.spread(p.mean, p.log_spread).square() for p in posteriors]).mean(0)
        spread = (within + each.var(0, correction=0)).sqrt().cpu()
        probability = calibration.probabilities(each.mean(0).cpu())
        check_answer(probability, spread)
        drawn = calibration.probabilities(head.decision(codes.flatten(0, 1)).cpu()).view(len(codes), *probability.shape)
        low, high = _range(drawn)
        # A skewed range may miss the probability of the average: it is stretched to hold it.
        low, high = torch.minimum(low, probability), torch.maximum(high, probability)
        order = probability.argsort(1, descending=True)[:, : max(question.top for question in questions)]
        columns = [part.gather(1, order) for part in (probability, spread.to(probability), low, high)]
        rows = torch.stack(columns, 2).double().round(decimals=_DIGITS).tolist()
        return [
            tuple(LabelGuess(names[c], *row) for c, row in zip(classes[: question.top], mine, strict=False))
            for classes, mine, question in zip(order.tolist(), rows, questions, strict=True)
        ]

    def _drawings(self, posterior: Posterior, questions: Sequence[Question]) -> list[Pixels | None]:
        """From the mean of the code and the places drawn with it, as `semisight reconstruct` does."""
        if not any(question.draw for question in questions) or (self.backbone is not None and self.pixels is None):
            return [None] * len(questions)
        if self.pixels is not None:  # features are no picture: these are drawn beside
            drawn = to_pixels(self.pixels(posterior.mean))
        else:
            drawn = to_pixels(batch_first(self.run.model.decoder(posterior.mu, posterior.z).mean))
        return [one if question.draw else None for one, question in zip(drawn, questions, strict=True)]

    def _nearest(self, means: Tensor, questions: Sequence[Question]) -> list[tuple[Neighbour, ...]]:
        most = max(question.nearest for question in questions)
        if self.neighbours is None or most == 0:
            return [()] * len(questions)
        found = self.neighbours.nearest(means.cpu(), most)
        return [one[: question.nearest] for one, question in zip(found, questions, strict=True)]

    def _captions(self, codes: Tensor, questions: Sequence[Question]) -> list[tuple[Sentence, ...]]:
        result: list[tuple[Sentence, ...]] = [()] * len(questions)
        asked = [place for place, question in enumerate(questions) if question.captions]
        if self.describer is not None and asked:
            found = self.describer(codes[:, asked], max(questions[place].captions for place in asked))
            for place, sentences in zip(asked, found, strict=True):
                result[place] = sentences[: questions[place].captions]
        return result


def _range(drawn: Tensor) -> tuple[Tensor, Tensor]:
    """The middle of draws [N_s, ...]: where SHARE of them lie."""
    ordered = drawn.sort(0).values
    outside = round((1 - SHARE) / 2 * (len(drawn) - 1))
    return ordered[outside], ordered[-1 - outside]
