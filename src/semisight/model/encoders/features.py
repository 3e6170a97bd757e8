"""Section 2 with X the feature vector of a pretrained network instead of pixels: a linear model in closed form.

    X = D s + bias + noise,   s ~ N(0, I)                         the decoder with 1 x 1 maps and one layer, no places
    q(s | X): mu = U'(I - noise/lambda) x, scaled to unit length  x: the scaled row below; U, lambda: principal axes

With a linear encoder the bound (10) has its maximum in closed form: probabilistic PCA of all images, labelled or not
(Tipping and Bishop, 1999). Rows are scaled before: square root (features after a ReLU are counts of evidence), unit
length, centred on the training mean, unit length. The code is scaled to unit length too, so that a prior on the head
treats all images alike. Both were chosen on Caltech-101 (docs/experiments.md).
"""

from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semisight.model.architecture import Architecture, Layer
from semisight.model.decoder import Decoder
from semisight.model.posterior import Noise, Posterior

CODE_SIZE = 256
_LEAST = 1e-9  # variance of an axis that is used
_SPREAD = 0.05  # of the code, standard deviation: a head is asked at the mean


class FeatureEncoder(nn.Module):
    """q(s | X) of feature vectors [C, 1, 1, B]; `fit` finds it from rows."""

    has_places = False
    mean_is_exact = True
    rooted: Tensor
    centre: Tensor
    axes: Tensor

    def __init__(self, n_features: int, code_size: int) -> None:
        super().__init__()
        self.code_shape = (code_size, 1, 1)
        self.register_buffer("rooted", torch.zeros((), dtype=torch.bool))
        self.register_buffer("centre", torch.zeros(n_features))
        self.register_buffer("axes", torch.zeros(n_features, code_size))

    @classmethod
    @torch.no_grad()
    def fit(cls, rows: Tensor, code_size: int = CODE_SIZE) -> Self:
        """From the features [N, C] of all training images."""
        n, n_features = rows.shape
        rooted = bool((rows >= 0).all())
        scaled = _scaled(rows.float(), torch.tensor(rooted))
        centre = scaled.mean(0)
        scaled = F.normalize(scaled - centre, dim=1)
        value, vector = torch.linalg.eigh((scaled.T @ scaled / n).double())
        value, vector = value.flip(0), vector.flip(1)
        size = max(1, min(code_size, int((value > _LEAST).sum()), n - 1))
        noise = float(value[size:].mean()) if size < n_features else 0.0
        encoder = cls(n_features, size)
        encoder.rooted.fill_(rooted)
        encoder.centre.copy_(centre)
        encoder.axes.copy_(vector[:, :size] * (1 - noise / value[:size]))
        return encoder

    def forward(self, x: Tensor, noise: Noise, through: bool = True) -> Posterior:
        del through
        mu, log_sigma = self.moments(x)
        return Posterior(mu, log_sigma, mu + noise.eps * log_sigma.exp())

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = _scaled(x.flatten(0, 2).T, self.rooted)  # [B, C]
        rows = F.normalize(rows - self.centre, dim=1)
        mu = F.normalize(rows @ self.axes, dim=1).T.reshape(*self.code_shape, x.shape[-1])
        return mu, torch.full_like(mu, _SPREAD).log()

    def start_from(self, mean: Tensor, variance: Tensor) -> None:
        """It is not started but fitted."""


class ScaledFeatures(nn.Module):
    """The features themselves as the code: standardised, or of unit length. A softmax on it is logistic regression."""

    has_places = False
    mean_is_exact = True
    unit: Tensor
    centre: Tensor
    scale: Tensor

    def __init__(self, n_features: int, unit: bool = False) -> None:
        super().__init__()
        self.code_shape = (n_features, 1, 1)
        self.register_buffer("unit", torch.tensor(unit))
        self.register_buffer("centre", torch.zeros(n_features))
        self.register_buffer("scale", torch.ones(n_features))

    def forward(self, x: Tensor, noise: Noise, through: bool = True) -> Posterior:
        del through
        mu, log_sigma = self.moments(x)
        return Posterior(mu, log_sigma, mu + noise.eps * log_sigma.exp())

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = (x.flatten(0, 2).T - self.centre) / self.scale  # [B, C]
        rows = torch.where(self.unit, F.normalize(rows, dim=1), rows)
        mu = rows.T.reshape(*self.code_shape, x.shape[-1])
        spread = torch.where(self.unit, _SPREAD / self.code_shape[0] ** 0.5, _SPREAD)
        return mu, torch.zeros_like(mu) + spread.log()

    def start_from(self, mean: Tensor, variance: Tensor) -> None:
        """It is not started but fitted."""


def _scaled(rows: Tensor, rooted: Tensor) -> Tensor:
    # no branch on a tensor: it could not be exported
    return F.normalize(torch.where(rooted, rows.clamp_min(0).sqrt(), rows), dim=1)


@torch.no_grad()
def fit_decoder(codes: Tensor, rows: Tensor) -> Decoder:
    """The decoder that maximises the likelihood of the features [N, C] given their mean codes [N, J]."""
    n, size = codes.shape
    decoder = Decoder(feature_architecture(rows.shape[1], size))
    centre, mean = codes.mean(0), rows.mean(0)
    inputs, outputs = (codes - centre).double(), (rows - mean).double()
    ridge = 1e-6 * n * torch.eye(size, dtype=torch.float64)
    weights = torch.linalg.solve(inputs.T @ inputs + ridge, inputs.T @ outputs)  # [J, C]
    residual = outputs - inputs @ weights
    decoder.dictionaries[0].copy_(weights[..., None, None])
    decoder.image_bias.copy_((mean - (centre.double() @ weights).to(mean))[:, None, None, None])
    decoder.log_alpha0.copy_(-residual.square().mean().clamp_min(1e-12).log())
    return decoder


def feature_architecture(n_features: int, code_size: int) -> Architecture:
    """One layer of 1 x 1 maps: a linear map from the code to the features."""
    return Architecture((n_features, 1, 1), (Layer(code_size, 1, 1),))
