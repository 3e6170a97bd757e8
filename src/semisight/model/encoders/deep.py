"""Beyond the paper: a deeper recognition model q(s, z | X) for the same decoder, a small modern network.

    stem      3x3 convolution; images above 40 pixels are halved first, by its stride, and above 80 once more
    stages    3x3 convolutions, each with batch normalisation and ReLU; max-pooled by 2 from stage to stage
    top       a residual pair of convolutions, then the mean over what each place of the code sees
    q(s | X)  N(mu, sigma^2), both by a 1x1 convolution of the top
    q(z | X)  for a pooled layer of the decoder, softmax over each block of logits, a 1x1 convolution of the stage
              whose resolution is nearest to that layer's

s does not look at z: q(s | X) and q(z | X) are independent given X, as (16) assumes, and where no image is decoded z is
left out (`code`). Works on [B, C, H, W] with the channels last in memory, which library convolutions like best.
"""

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semisight.errors import UserError
from semisight.model.architecture import Architecture
from semisight.model.ops.batch_norm import BatchNorm
from semisight.model.ops.places import Chosen, choose_from_logits
from semisight.model.ops.pooling import to_blocks
from semisight.model.posterior import Noise, Posterior

# Maps of stem and stages; the last stage has a residual pair on top.
WIDTHS = ((16, 32), (64, 96), (128,))
_LARGE = 40  # pixels of the shorter side above which an image is halved before the first stage
_LEAST_SIDE = 8  # a stage of fewer pixels is not pooled further


class DeepEncoder(nn.Module):
    """q(s, z | X) by convolutions of 3 x 3, batch normalisation and ReLU.

    Args:
        architecture: of the decoder: it says which places there are to choose, and how large the code is.
        generator: of the start; by default always the same.
        width: times so many maps in every layer.
        places: draw z; without, values go to fixed places.
        bf16: convolve in bfloat16 while learning, where the processor gains from it.

    Example:
        >>> import semisight as ss
        >>> images = ss.load("builtin:digits")
        >>> architecture = ss.ImageModel.suited_to(images).architecture
        >>> encoder = ss.DeepEncoder(architecture, width=0.5)
        >>> model = ss.ImageModel(encoder, ss.Decoder(architecture))
        >>> encoder.has_places, encoder.mean_is_exact
        (True, True)
    """

    mean_is_exact = True
    centre: Tensor
    scale: Tensor

    def __init__(
        self,
        architecture: Architecture,
        generator: torch.Generator | None = None,
        width: float = 1.0,
        places: bool = True,
        bf16: bool = False,
    ) -> None:
        super().__init__()
        if not 0 < width <= 64:
            raise UserError(f"width must be above 0 and at most 64, not {width!r}.")
        generator = generator or torch.Generator().manual_seed(0)
        self.architecture, self.width, self.bf16 = architecture, width, bf16
        self.has_places, self.code_shape = places, architecture.code_shape
        self.register_buffer("centre", torch.zeros(*architecture.image_shape, 1))
        self.register_buffer("scale", torch.ones(()))
        channels, height, wide = architecture.image_shape
        halvings = max(0, math.ceil(math.log2(min(height, wide) / _LARGE)))
        maps = [[max(4, round(width * n)) for n in stage] for stage in WIDTHS]
        stem = 2 if halvings else 1
        self.stem = Unit(channels, maps[0][0], generator, stride=stem)
        self.shrink = 2 ** max(0, halvings - 1)
        sizes = [tuple(math.ceil(n / stem) // self.shrink for n in (height, wide))]
        stages = [Stage(maps[0], generator)]
        for below, widths in pairwise(maps):
            if min(sizes[-1]) < _LEAST_SIDE:
                break
            sizes.append((sizes[-1][0] // 2, sizes[-1][1] // 2))
            stages.append(Stage([below[-1], *widths], generator))
        self.stages, self.sizes = nn.ModuleList(stages), sizes
        top = stages[-1].maps
        self.residual = nn.Sequential(Unit(top, top, generator), Unit(top, top, generator))
        self.code_maps = _conv(top, 2 * self.code_shape[0], 1, generator, bias=True)
        with torch.no_grad():
            self.code_maps.weight[self.code_shape[0] :] *= 0.1  # log sigma: a start that lets the image through
            assert self.code_maps.bias is not None
            self.code_maps.bias[self.code_shape[0] :] = -1.0
        self.logits = nn.ModuleList(
            Logits(architecture.layers[l].maps, architecture.shapes[l].convolved, sizes, stages, generator)
            for l in (architecture.pooled_layers if places else ())
        )

    def forward(self, x: Tensor, noise: Noise, through: bool = True) -> Posterior:
        maps = self._maps(x)
        mu, log_sigma = self._code(maps)
        chosen: list[Chosen] = []
        for index, logits in enumerate(self.logits):
            blocks = to_blocks(logits(maps).permute(1, 2, 3, 0), self.architecture.layers[index].pool)
            chosen.append(choose_from_logits(blocks, noise.uniform[index], through))
        return Posterior(mu, log_sigma, mu + noise.eps * log_sigma.exp(), tuple(chosen))

    def code(self, x: Tensor, eps: Tensor) -> Posterior:
        """A draw of s alone."""
        mu, log_sigma = self._code(self._maps(x))
        return Posterior(mu, log_sigma, mu + eps * log_sigma.exp())

    @torch.no_grad()
    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._code(self._maps(x))

    @torch.no_grad()
    def start_from(self, mean: Tensor, variance: Tensor) -> None:
        self.centre.copy_(mean)
        self.scale.copy_(variance.sqrt())

    def features(self, images: Tensor) -> list[Tensor]:
        """The maps of every stage for centred images [B, C, H, W]; the last are the top's."""
        maps = self.stem(images)
        maps = F.max_pool2d(maps, self.shrink) if self.shrink > 1 else maps
        found: list[Tensor] = []
        for number, stage in enumerate(self.stages):
            maps = stage(F.max_pool2d(maps, 2) if number else maps)
            found.append(maps)
        return [*found[:-1], maps + self.residual(maps)]

    def _maps(self, x: Tensor) -> list[Tensor]:
        images = ((x - self.centre) / self.scale).permute(3, 1, 2, 0).contiguous().permute(0, 3, 1, 2)
        where = x.device.type
        reduced = torch.is_autocast_enabled(where) or (self.bf16 and self.training and torch.is_grad_enabled())
        with torch.autocast(where, torch.bfloat16, enabled=reduced):
            return self.features(images)

    def _code(self, maps: list[Tensor]) -> tuple[Tensor, Tensor]:
        seen = F.adaptive_avg_pool2d(maps[-1].to(self.code_maps.weight.dtype), self.code_shape[1:])
        both = self.code_maps(seen).permute(1, 2, 3, 0).contiguous()  # [2 K, h, w, B]
        mu, log_sigma = both.chunk(2)
        return mu, log_sigma


class Unit(nn.Module):
    """3x3 convolution, batch normalisation, ReLU."""

    def __init__(self, below: int, maps: int, generator: torch.Generator, stride: int = 1) -> None:
        super().__init__()
        self.conv, self.norm = _conv(below, maps, 3, generator, stride), BatchNorm(maps)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu_(self.norm(self.conv(x)))


class Stage(nn.Sequential):
    """Units of one resolution, by their numbers of maps; the first is what comes in."""

    def __init__(self, maps: list[int], generator: torch.Generator) -> None:
        super().__init__(*(Unit(below, above, generator) for below, above in pairwise(maps)))
        self.maps = maps[-1]


class Logits(nn.Module):
    """A number for every place of a decoder's layer, from the stage of the nearest resolution.

    A coarser stage gives several numbers for each of its pixels (pixel shuffle); what is more than the layer has places
    is cut off around.
    """

    def __init__(
        self,
        maps: int,
        size: tuple[int, int],
        sizes: list[tuple[int, ...]],
        stages: list[Stage],
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.size = size
        self.stage = min(range(len(sizes)), key=lambda n: (abs(math.log(sizes[n][0] / size[0])), n))
        self.finer = max(math.ceil(wanted / there) for wanted, there in zip(size, sizes[self.stage], strict=True))
        # without a bias: one number for all places of a map cancels in the softmax
        self.conv = _conv(stages[self.stage].maps, maps * self.finer**2, 1, generator)

    def forward(self, maps: list[Tensor]) -> Tensor:
        logits = self.conv(maps[self.stage].to(self.conv.weight.dtype))
        logits = F.pixel_shuffle(logits, self.finer) if self.finer > 1 else logits
        top, left = ((there - wanted) // 2 for there, wanted in zip(logits.shape[2:], self.size, strict=True))
        return logits[:, :, top : top + self.size[0], left : left + self.size[1]]


def _conv(
    below: int, maps: int, kernel: int, generator: torch.Generator, stride: int = 1, bias: bool = False
) -> nn.Conv2d:
    conv = nn.utils.skip_init(nn.Conv2d, below, maps, kernel, stride, padding=kernel // 2, bias=bias)
    with torch.no_grad():
        gain = 2.0 if kernel > 1 else 0.25  # what is read off by 1x1 starts small
        conv.weight.copy_(torch.randn(conv.weight.shape, generator=generator) * math.sqrt(gain / (below * kernel**2)))
        if conv.bias is not None:
            conv.bias.zero_()
    return conv.to(memory_format=torch.channels_last)
