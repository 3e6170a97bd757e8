"""A run and its images in, the page out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from semisight.app.report import labels, records, sections
from semisight.app.report.dictionary import dictionaries
from semisight.app.report.labels_seen import LabelsSeen, label_words, see_labels
from semisight.app.report.material import Material
from semisight.app.report.observe import Numbers, observe, plain_words
from semisight.app.report.page import Section, page
from semisight.app.report.placement import places
from semisight.app.runs import Run
from semisight.app.sets import Sets
from semisight.errors import UserError
from semisight.files import write_atomic
from semisight.learning.logs import read_log
from semisight.learning.runs import fingerprint

Show = Callable[[Material], Section]

# In the order of the page; what labels have to show comes before them.
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

    numbers: Numbers
    labels: LabelsSeen | None

    def words(self) -> list[str]:
        return [*(label_words(self.labels) if self.labels else []), *plain_words(self.numbers)]


def write_report(run: Run, sets: Sets, out: Path, shows: Sequence[Show] = SECTIONS) -> Findings:
    """Writes the page, whole or not at all, and gives what it found."""
    material = look(run, sets)
    name = run.folder.path.absolute().name
    config, record = run.config, material.record
    subtitle = (
        f"semisight, learned from {record.n_train:,} images of {record.settings.source} {_with(material.labels)}; "
        f"seed {config.seed}"
    )
    write_atomic(
        out, page(f"What {name} learned", subtitle, [*labels.sections(material), *(show(material) for show in shows)])
    )
    return Findings(material.seen.numbers, material.labels)


def _with(seen: LabelsSeen | None) -> str:
    if seen is None:
        return "without labels or captions"
    return f"with {int(seen.labelled.sum()):,} labels of {len(seen.classifier.class_names)} classes"


def look(run: Run, sets: Sets) -> Material:
    if sets.train.shape != run.architecture.image_shape:
        raise UserError(
            f"the images of {sets.train.source} have shape {sets.train.shape}, the model of {run.folder.path} takes "
            f"{run.architecture.image_shape}: give the images it learned from with --data."
        )
    same = {"train": fingerprint(sets.train), "valid": fingerprint(sets.valid)} == run.meta.get("data")
    log = read_log(run.folder.log) if run.folder.log.exists() else []
    seen = None if run.classifier is None else see_labels(run, sets)
    return Material(run, sets, run.data(), observe(run, sets), log, same, seen)
