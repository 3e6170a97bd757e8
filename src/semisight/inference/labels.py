"""Sections 4 and 5.1: labels for new images, by decision values averaged over codes from q(s, z | X).

    f(X) = E_q(z|X) [ beta' mu(X, z) + bias ]        the average over s is exact, because f is linear in s

With pooling="expected" (and "max") mu does not depend on z: one pass is the whole average. With "sampled" it is the
mean over `n_codes` draws of z. The spread is the standard deviation of f over q(s, z | X): how sure the code leaves us.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from semisight.model.heads.labels import LabelHead
from semisight.model.image_model import ImageModel
from semisight.objectives.step import Images


@dataclass(frozen=True)
class Prediction:
    """Decision values and their standard deviation over codes, [B, C] each."""

    decision: Tensor
    spread: Tensor

    @property
    def label(self) -> Tensor:
        return self.decision.argmax(1)


@torch.no_grad()
def predict_labels(
    model: ImageModel, head: LabelHead, images: Tensor, n_codes: int = 50, generator: torch.Generator | None = None
) -> Prediction:
    """Images [B, C, H, W]; the same generator state gives the same answer."""
    if model.pooling != "sampled":
        mean, log_spread = model.code_moments(images)
        return Prediction(head.decision(mean), head.spread(mean, log_spread))
    generator = generator or torch.Generator().manual_seed(0)
    total = squares = within = torch.zeros(())
    for _ in range(n_codes):
        posterior = model.encode(images, generator)
        decision = head.decision(posterior.mean)
        total, squares = total + decision, squares + decision.square()
        within = within + head.spread(posterior.mean, posterior.log_spread).square()
    average = total / n_codes
    between = (squares / n_codes - average.square()).clamp_min(0)
    return Prediction(average, (within / n_codes + between).sqrt())


@torch.no_grad()
def in_batches(
    model: ImageModel,
    head: LabelHead,
    images: Images,
    n_codes: int = 50,
    batch_size: int = 500,
    seed: int = 0,
) -> Prediction:
    """The prediction for a whole set, a batch at a time."""
    was_training = model.training
    model.eval()
    parts = []
    for number, index in enumerate(torch.arange(len(images)).split(batch_size)):
        generator = torch.Generator().manual_seed(seed + number)
        batch = images.batch(index).to(model.decoder.log_alpha0.device)
        parts.append(predict_labels(model, head, batch, n_codes, generator))
    model.train(was_training)
    return Prediction(torch.cat([p.decision for p in parts]), torch.cat([p.spread for p in parts]))
