"""A run and its images in, the page out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from semisight.errors import UserError
from semisight.files import write_atomic
from semisight.report import captions, labels, records, sections
from semisight.report.captions_seen import CaptionsSeen, caption_words, see_captions
from semisight.report.dictionary import dictionaries
from semisight.report.labels_seen import LabelsSeen, label_words, see_labels
from semisight.report.material import Material
from semisight.report.observe import Numbers, observe, plain_words
from semisight.report.page import Section, page
from semisight.report.placement import places
from semisight.runs.images import Sets
from semisight.runs.run import Run
from semisight.training.folder import fingerprint
from semisight.training.logs import read_log

Show = Callable[[Material], Section]

# In the order of the page; what captions and labels have to show comes before them.
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
    captions: CaptionsSeen | None = None

    def words(self) -> list[str]:
        return [
            *(caption_words(self.captions) if self.captions else []),
            *(label_words(self.labels) if self.labels else []),
            *plain_words(self.numbers),
        ]


def write_report(run: Run, sets: Sets, out: Path, shows: Sequence[Show] = SECTIONS) -> Findings:
    """Writes the page, whole or not at all, and gives what it found."""
    material = look(run, sets)
    name = run.folder.path.absolute().name
    config, record = run.config, material.record
    subtitle = (
        f"semisight, learned from {record.n_train:,} images of {record.settings.source} {_with(material)}; "
        f"seed {config.seed}"
    )
    first = [*captions.sections(material), *labels.sections(material)]
    write_atomic(out, page(f"What {name} learned", subtitle, [*first, *(show(material) for show in shows)]))
    return Findings(material.seen.numbers, material.labels, material.captions)


def _with(m: Material) -> str:
    found = []
    if m.captions is not None:
        found.append(f"{m.captions.captioner.n_captions:,} captions")
    if m.labels is not None:
        found.append(f"{int(m.labels.labelled.sum()):,} labels of {len(m.labels.classifier.class_names)} classes")
    return f"with {' and '.join(found)}" if found else "without labels or captions"


def look(run: Run, sets: Sets) -> Material:
    if sets.train.shape != run.architecture.image_shape:
        raise UserError(
            f"the images of {sets.train.source} have shape {sets.train.shape}, the model of {run.folder.path} takes "
            f"{run.architecture.image_shape}: give the images it learned from with --data."
        )
    same = {"train": fingerprint(sets.train), "valid": fingerprint(sets.valid)} == run.meta.get("data")
    log = read_log(run.folder.log) if run.folder.log.exists() else []
    seen = None if run.classifier is None else see_labels(run, sets)
    said = None if run.captioner is None else see_captions(run, sets)
    return Material(run, sets, run.data(), observe(run, sets), log, same, seen, said)
