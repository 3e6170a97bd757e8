"""What an inspection found, as a table for people or JSON for programs."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, Literal

from semisight.data.image_set import skipped_summary
from semisight.runs.describe import describe_architecture
from semisight.runs.expected_time import Expected
from semisight.runs.inspecting import Inspection
from semisight.runs.predicting import columns

Format = Literal["table", "json"]
_SHOWN = 6  # entries of a list, classes apart
_CLASSES = 20
_FILES = 100  # named for each mistake in JSON


def written(found: Inspection, kind: Format) -> str:
    """Text that ends in a line break."""
    if kind == "json":
        return json.dumps(_as_json(found), indent=1, ensure_ascii=False) + "\n"
    return "\n".join(_as_lines(found)) + "\n"


def _as_lines(found: Inspection) -> list[str]:
    channels, height, width = found.shape
    colour = {1: "grey", 3: "colour"}.get(channels, f"{channels} channels")
    rows = [
        ("images", f"{found.n_images:,} from {found.source}"),
        ("sizes", _list(found.sizes)),
        ("modes", _list(found.modes)),
        ("formats", _list(found.formats)),
        ("read as", f"{width} x {height} pixels, {colour}"),
        ("labels", _labels(found)),
        ("captions", _captions(found)),
        ("unreadable", skipped_summary(found.skipped) or "none"),
        ("duplicates", _duplicates(found.duplicates)),
        ("layers", "; ".join(describe_architecture(found.architecture)) if found.architecture else "none fit"),
        ("training", _time(found.expected)),
    ]
    lines = columns([row for row in rows if row[1]])
    lines += [f"note: {note}" for note in found.notes]
    if found.n_decoded < found.n_images:
        lines.append(
            f"note: of {found.n_images:,} images {found.n_decoded:,} were decoded; of the others only the headers were "
            "read, so that damage further on, and images of one colour, may be missed"
        )
    if found.classes:
        shown = sorted(found.classes, key=lambda one: -one[1])
        lines += ["", *columns([("class", "labels"), *((name, f"{n:,}") for name, n in shown[:_CLASSES])], right=(1,))]
        if len(shown) > _CLASSES:
            lines.append(f"... and {len(shown) - _CLASSES:,} more: --format json gives all of them")
    if found.mistakes:
        lines += ["", "likely mistakes"]
        for mistake in found.mistakes:
            named = f" ({_few(mistake.files)})" if mistake.files and mistake.kind != "two labels" else ""
            lines.append(f"  - {mistake.message}{named}")
    else:
        lines += ["", "no likely mistakes found"]
    return lines


def _as_json(found: Inspection) -> dict[str, Any]:
    architecture, expected = found.architecture, found.expected
    return {
        "source": found.source,
        "images": found.n_images,
        "decoded": found.n_decoded,
        "sizes": dict(found.sizes),
        "modes": dict(found.modes),
        "formats": dict(found.formats),
        "shape": list(found.shape),
        "labelled": found.n_labelled,
        "classes": None if found.classes is None else dict(found.classes),
        "captions": None if found.captions is None else dataclasses.asdict(found.captions),
        "unreadable": [{"file": skip.name, "reason": skip.reason} for skip in found.skipped],
        "duplicates": [list(group) for group in found.duplicates],
        "mistakes": [
            {"kind": m.kind, "message": m.message, "files": list(m.files[:_FILES]), "n_files": len(m.files)}
            for m in found.mistakes
        ],
        "notes": list(found.notes),
        "architecture": None
        if architecture is None
        else {**architecture.to_dict(), "code_size": architecture.code_size},
        "expected": None
        if expected is None
        else {
            "steps": expected.steps,
            "epochs": expected.epochs,
            "seconds_per_step": round(expected.seconds_per_step, 5),
            "minutes": round(expected.minutes, 2),
        },
    }


def _labels(found: Inspection) -> str:
    if found.classes is None:
        return "none"
    share = found.n_labelled / found.n_images
    return f"{found.n_labelled:,} images ({share:.1%}) of {len(found.classes)} classes"


def _captions(found: Inspection) -> str:
    if found.captions is None:
        return "none"
    return f"{found.captions.captions:,} for {found.captions.images:,} images"


def _duplicates(groups: Sequence[Sequence[str]]) -> str:
    if not groups:
        return "none"
    extra = sum(len(group) - 1 for group in groups)
    first = " = ".join(groups[0][:3]) + (" = ..." if len(groups[0]) > 3 else "")
    return f"{extra:,} image{'s' * (extra != 1)} repeat others, such as {first}"


def _time(expected: Expected | None) -> str:
    if expected is None:
        return ""
    minutes = expected.minutes
    long = f"{minutes:.0f} minutes" if minutes >= 1.5 else f"{60 * minutes:.0f} seconds"
    if minutes > 120:
        long = f"{minutes / 60:.1f} hours"
    steps = f"{expected.epochs:,} epochs, {expected.steps:,} steps"
    return f"at most about {long} if the machine is free: {steps}; --minutes ends it sooner"


def _list(counts: Sequence[tuple[str, int]]) -> str:
    if len(counts) == 1:
        return counts[0][0]
    shown = [f"{name} ({n:,})" for name, n in counts[:_SHOWN]]
    return ", ".join(shown) + (f" and {len(counts) - _SHOWN} more" if len(counts) > _SHOWN else "")


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
