"""A run and its images in, the page out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semisight.errors import UserError
from semisight.files import write_atomic
from semisight.report import captions, codes, labels, records, sections, tags, ways
from semisight.report.dictionary import dictionaries
from semisight.report.material import Material
from semisight.report.observe import Numbers, observe, plain_words
from semisight.report.page import Section, page
from semisight.report.placement import places
from semisight.runs.images import Sets
from semisight.runs.pixels import pixel_decoder
from semisight.runs.run import Run
from semisight.training.folder import fingerprint
from semisight.training.logs import read_log

# What each target has to show: `sections` come first on the page, `further` after the codes, `warnings` above all.
PARTS: Mapping[str, Any] = {"captions": captions, "tags": tags, "labels": labels}
Show = Callable[[Material], Section]

# In the order of the page, after what the targets have to show.
SECTIONS: tuple[Show, ...] = (
    sections.learned,
    sections.reconstructions,
    sections.samples,
    dictionaries,
    places,
    records.curves,
    records.settings,
)


@dataclass(frozen=True)
class Findings:
    """What the page says, for those who do not open it."""

    numbers: Numbers | None
    found: Mapping[str, Any]

    def words(self) -> list[str]:
        return [*(line for name, seen in self.found.items() for line in PARTS[name].words(seen)),
                *([] if self.numbers is None else plain_words(self.numbers))]  # fmt: skip


def write_report(run: Run, sets: Sets, out: Path, shows: Sequence[Show] = SECTIONS) -> Findings:
    """Writes the page, whole or not at all, and gives what it found."""
    material = look(run, sets)
    if material.seen is None:  # of features: nothing that is drawn from pixels
        shows = [show for show in shows if show in (records.curves, records.settings)]
        shows = [sections.drawn_beside, *shows] if material.decoder is not None else shows
    name = run.folder.path.absolute().name
    config, record = run.config, material.record
    subtitle = (
        f"semisight, learned from {record.n_train:,} images of {record.settings.source} {_with(material)}; "
        f"seed {config.seed}"
    )
    first = [section for name, seen in material.found.items() for section in PARTS[name].sections(material, seen)]
    first += [ways.compared(material)] if ways.has_ways(material) else []
    further = [section for name, seen in material.found.items() for section in PARTS[name].further(material, seen)]
    everything = [*first, *codes.sections(material.codes), *further, *(show(material) for show in shows)]
    write_atomic(out, page(f"What {name} learned", subtitle, everything, _warnings(material)))
    return Findings(None if material.seen is None else material.seen.numbers, material.found)


def _warnings(m: Material) -> list[str]:
    """What stands above everything else: a run that is not finished, answers that are not to be relied on."""
    unfinished = [m.run.unfinished] if m.run.unfinished else []
    return [*unfinished, *(line for name, seen in m.found.items() for line in PARTS[name].warnings(m, seen))]


def _with(m: Material) -> str:
    found = [PARTS[name].learned_with(seen) for name, seen in m.found.items()]
    return f"with {' and '.join(found)}" if found else "without labels or captions"


def look(run: Run, sets: Sets) -> Material:
    if sets.train.shape != run.architecture.image_shape:
        raise UserError(
            f"the images of {sets.train.source} have shape {sets.train.shape}, the model of {run.folder.path} takes "
            f"{run.architecture.image_shape}: give the images it learned from with --data."
        )
    same = {"train": fingerprint(sets.train), "valid": fingerprint(sets.valid)} == run.meta.get("data")
    log = read_log(run.folder.log) if run.folder.log.exists() else []
    found = {name: part.look(run, sets) for name, part in PARTS.items() if run.has(name)}
    seen = observe(run, sets) if run.backbone is None else None
    return Material(run, sets, run.data(), seen, codes.look(run, sets), log, same, found, pixel_decoder(run))
