"""Section 5: what held-out labels and captions say of a model; trainings keep the weights for which they say the best.

A function gets the model, the head, the images and what they carry, and nothing else: what it looks at is what it is
given. Without anything held out it gives no terms.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor

from semisight.data.tokenizer import tokenize
from semisight.data.vocabulary import Vocabulary
from semisight.inference.captions import CaptionReader, Search, caption_perplexity, write_captions
from semisight.inference.encode import encode_set
from semisight.inference.labels import decide
from semisight.metrics.calibration import fit_temperature, negative_log_likelihood
from semisight.metrics.captions import cider
from semisight.metrics.classification import error_rate
from semisight.model.heads.captions import CaptionHead
from semisight.model.heads.labels import LabelHead
from semisight.model.image_model import ImageModel
from semisight.objectives.captions import EncodedCaptions
from semisight.objectives.step import Images


def decision_values(
    model: ImageModel, head: LabelHead, images: Images, *, index: Tensor | None = None, seed: int = 0
) -> Tensor:
    """f(X) of the images of a set, or of those at `index`: [N, C], on the CPU."""
    parts = [decide(head, codes).value.cpu() for _, codes, _ in encode_set(model, images, index=index, seed=seed)]
    return torch.cat(parts)


def label_error(model: ImageModel, head: LabelHead, images: Images, labels: Tensor, *, seed: int = 0) -> float:
    """Percent of the images with a label (int64 [N], -1 where unknown) that get another one."""
    known = (labels >= 0).nonzero().squeeze(1)
    return 100 * error_rate(decision_values(model, head, images, index=known, seed=seed).argmax(1), labels[known])


def label_terms(
    model: ImageModel, head: LabelHead, images: Images, labels: Tensor, *, seed: int = 0
) -> dict[str, float]:
    """From the images that have a label (int64 [N], -1 where unknown):

    error  percent of them that get another label
    nll    mean of -log p(label), in nats, at the temperature that suits these labels best. A few labels tell two epochs
           apart by it long before they do by the error, which moves in steps.
    """
    known = (labels >= 0).nonzero().squeeze(1)
    if not len(known):
        return {}
    values, truth = decision_values(model, head, images, index=known, seed=seed), labels[known]
    probabilities = fit_temperature(values, truth).probabilities(values)
    return {
        "error": 100 * error_rate(values.argmax(1), truth),
        "nll": negative_log_likelihood(probabilities, truth),
    }


def caption_terms(
    model: ImageModel,
    head: CaptionHead,
    vocabulary: Vocabulary,
    images: Images,
    captions: Sequence[Sequence[str]],
    *,
    n_codes: int = 5,
    most_images: int | None = 300,
    cider_images: int = 0,
    beam: int = 3,
    seed: int = 0,
) -> dict[str, float]:
    """From the captions of each image, possibly none:

    perplexity  of the captions of the first `most_images` images that have any (None: of all)
    CIDEr       of captions written for the first `cider_images` of them, if above 0; and the share of these that get
                the most frequent of them, `same_caption`
    """
    captioned = (place for place, texts in enumerate(captions) if any(map(vocabulary.symbols, texts)))
    chosen = list(islice(captioned, most_images))
    if not chosen:
        return {}
    kept = set(chosen)
    encoded = EncodedCaptions.encode([texts if i in kept else () for i, texts in enumerate(captions)], vocabulary)
    index = torch.tensor(chosen)
    terms = {"perplexity": caption_perplexity(model, head, images, encoded, index=index, n_codes=n_codes, seed=seed)}
    if cider_images > 0:
        search = Search(n_codes=n_codes, beam=beam, seed=seed)
        found = write_captions(model, CaptionReader(head, vocabulary), images, search, index=index[:cider_images])
        references = [[tokenize(text) for text in captions[place]] for place in chosen[:cider_images]]
        words = [best.words for best, *_ in found]
        terms["CIDEr"] = cider(words, references).value
        terms["same_caption"] = max(Counter(words).values()) / len(words)  # near 1: collapsed
    return terms
