"""A run and its images in, the page out."""

from collections.abc import Callable, Sequence
from pathlib import Path

from semisight.app.report import records, sections
from semisight.app.report.dictionary import dictionaries
from semisight.app.report.material import Material
from semisight.app.report.observe import Numbers, observe
from semisight.app.report.page import Section, page
from semisight.app.report.placement import places
from semisight.app.runs import Run
from semisight.app.sets import Sets
from semisight.errors import UserError
from semisight.files import write_atomic
from semisight.learning.logs import read_log
from semisight.learning.runs import fingerprint

Show = Callable[[Material], Section]

# In the order of the page; what labels and captions have to show is put in here.
SECTIONS: tuple[Show, ...] = (
    sections.learned,
    sections.reconstructions,
    sections.samples,
    dictionaries,
    places,
    records.curves,
    records.settings,
)


def write_report(run: Run, sets: Sets, out: Path, shows: Sequence[Show] = SECTIONS) -> Numbers:
    """Writes the page, whole or not at all, and gives its numbers."""
    material = look(run, sets)
    name = run.folder.path.absolute().name
    config, record = run.config, material.record
    subtitle = (
        f"semisight, learned from {record.n_train:,} images of {record.settings.source} "
        f"without labels or captions; seed {config.seed}"
    )
    write_atomic(out, page(f"What {name} learned", subtitle, [show(material) for show in shows]))
    return material.seen.numbers


def look(run: Run, sets: Sets) -> Material:
    if sets.train.shape != run.architecture.image_shape:
        raise UserError(
            f"the images of {sets.train.source} have shape {sets.train.shape}, the model of {run.folder.path} takes "
            f"{run.architecture.image_shape}: give the images it learned from with --data."
        )
    same = {"train": fingerprint(sets.train), "valid": fingerprint(sets.valid)} == run.meta.get("data")
    log = read_log(run.folder.log) if run.folder.log.exists() else []
    return Material(run, sets, run.data(), observe(run, sets), log, same)
