"""The images of a run: to show, to compare new ones with, and to label.

An image is known by its file's name, never by a number: numbers change when the images are read again, and a label
that arrives after a restart must not land on another image.
"""

import dataclasses
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import torch
from PIL import Image
from torch import Tensor

from semisight.data.formats.pictures import Unreadable, read_header, read_pixels
from semisight.data.image_set import ImageSet
from semisight.data.label_csv import Entry, name_key
from semisight.errors import UserError
from semisight.inference.acquisition import Seen, see
from semisight.random import Stream, random_order
from semisight.runs.images import sets_of
from semisight.runs.pictures import picture
from semisight.runs.run import Run, check_urls
from semisight.runs.run_images import load_for
from semisight.runs.settings import DataSettings

MOST_ENCODED = 20_000  # images whose codes are kept; of more, so many drawn at random
_BATCH = 200
_SIDE = 800  # pixels of an image that is shown

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ImageIndex:
    """Images in one or several sets; those before `n_train` were learned from."""

    parts: tuple[ImageSet, ...]
    n_train: int
    source: str
    known: dict[str, Entry] = field(default_factory=dict)  # labels that the run was told
    captions: dict[str, tuple[str, ...]] = field(default_factory=dict)  # and captions
    _place: dict[str, tuple[int, int]] = field(init=False, repr=False, compare=False)
    _named: dict[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        places = ((name, (p, i)) for p, part in enumerate(self.parts) for i, name in enumerate(part.names))
        place = {name: at for name, at in places if _can_be_written(name)}
        last: dict[str, str | None] = {}
        for name in place:
            end = name_key(name).rsplit("/", 1)[-1]
            last[end] = None if end in last else name
        ends = {end: name for end, name in last.items() if name is not None}
        object.__setattr__(self, "_place", place)
        object.__setattr__(self, "_named", ends | {name_key(name): name for name in place})

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __contains__(self, name: str) -> bool:
        return name in self._place

    def named(self, file: str) -> str | None:
        """The image that a table means by `file`: its name, or the last part of it where no other image has that."""
        return self._named.get(name_key(file))

    def image(self, name: str) -> bytes:
        """A PNG or JPEG to look at: the file itself, scaled down, where there is one; else what the model sees."""
        part, i = self._place[name]
        pixels = self._original(name)
        if pixels is None and self.parts[part].are_features:
            return encoded(Image.new("L", (32, 32), 200), "PNG")  # it has moved: there is nothing to show
        if pixels is None:
            scaled = (self.parts[part].batch(torch.tensor([i])) * 255).round().to(torch.uint8)
            return encoded(picture(scaled[0].permute(1, 2, 0).numpy()), "PNG")
        return encoded(pixels, "JPEG")

    def _original(self, name: str) -> Image.Image | None:
        inside = PurePosixPath(name)
        if self.source.startswith("builtin:") or inside.is_absolute() or ".." in inside.parts:
            return None  # an archive may call its images anything: no name leads out of the source
        file = Path(self.source) / name
        if not file.is_file():
            return None
        try:
            header = read_header(file)
            scale = min(1.0, _SIDE / max(header.height, header.width))
            height, width = (max(1, round(side * scale)) for side in (header.height, header.width))
            return Image.fromarray(read_pixels(file, height, width, 3).transpose(1, 2, 0))
        except Unreadable:  # it has changed since it was read
            return None

    def sample(self, seed: int) -> list[tuple[int, Tensor]]:
        """(part, positions) of all images, or of as many as are encoded."""
        chosen = random_order(len(self), seed, Stream.INDEXED)[:MOST_ENCODED].sort().values
        result, start = [], 0
        for number, part in enumerate(self.parts):
            result.append((number, chosen[(chosen >= start) & (chosen < start + len(part))] - start))
            start += len(part)
        return result


@dataclass(frozen=True)
class Encoded:
    """Images by name, and what the run makes of them; if it knows no labels all are in equal doubt."""

    names: tuple[str, ...]
    seen: Seen
    learned: Tensor  # bool [N]: whether the run learned from it


def read_index(run: Run, folder: str | None, progress: Progress) -> ImageIndex:
    """The images that the run learned from, labelled or not; or those of another folder."""
    if folder is not None:
        images = load_for(run, folder, progress=progress)
        return ImageIndex((images,), 0, str(Path(folder).expanduser().absolute()))
    data = dataclasses.replace(run.data().settings, only_labelled=False)
    check_urls(data, run.folder.path, source="--images", names=("source",))
    try:
        check_urls(data, run.folder.path, source="--images")
        sets = sets_of(data, run.config.seed, progress)
    except UserError:  # perhaps only labels or captions have moved: the images are worth having without them
        alone = DataSettings(
            *(data.source, data.size, data.channels, data.limit, data.valid_fraction, data.backbone, data.views),
            grid=data.grid,
            use_labels=False,
        )
        sets = sets_of(alone, run.config.seed, progress)
    parts = (sets.train,) if sets.valid is None else (sets.train, sets.valid)
    if sets.train.shape != run.architecture.image_shape:
        raise UserError(f"the images of {data.source} have another size than those that the run learned from.")
    known = {
        name: Entry(label=part.class_names[c])
        for part in parts
        if part.labels is not None
        for name, c in zip(part.names, part.labels.tolist(), strict=True)
        if c >= 0
    }
    captions = {
        name: said
        for part in parts
        if part.captions is not None
        for name, said in zip(part.names, part.captions, strict=True)
        if said
    }
    return ImageIndex(parts, len(sets.train), data.source, known, captions)


@torch.no_grad()
def encode_index(run: Run, index: ImageIndex, progress: Progress) -> Encoded:
    generator = torch.Generator().manual_seed(0)
    names: list[str] = []
    codes, probabilities, learned = [], [], []
    total = min(len(index), MOST_ENCODED)
    for number, positions in index.sample(run.config.seed):
        part = index.parts[number]
        named = torch.tensor([part.names[i] in index for i in positions.tolist()], dtype=torch.bool)
        for batch in positions[named].split(_BATCH):
            if not run.has("labels"):
                codes.append(run.model.mean_code(part.batch(batch).to(run.device), generator).cpu())
            else:
                seen = see(run.model, run.labels.head, part.subset(batch), run.labels.calibration.probabilities)
                codes.append(seen.codes)
                probabilities.append(seen.probabilities)
            names += [part.names[i] for i in batch.tolist()]
            learned += [number == 0 and index.n_train > 0] * len(batch)
            progress(len(names), total)
    found = Seen(torch.cat(codes), torch.cat(probabilities) if probabilities else torch.full((len(names), 2), 0.5))
    return Encoded(tuple(names), found, torch.tensor(learned))


def _can_be_written(name: str) -> bool:
    """Linux lets a name be any bytes; one that is no text has no place in a table."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def encoded(image: Image.Image, kind: str) -> bytes:
    """Quickly rather than as small as possible: it travels once."""
    stream = io.BytesIO()
    image.save(stream, kind, **({"compress_level": 1} if kind == "PNG" else {"quality": 88}))
    return stream.getvalue()
