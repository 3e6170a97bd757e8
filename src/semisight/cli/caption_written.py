"""`semisight caption` without its command line: captions of images as a table, CSV or JSON."""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any, Literal

from semisight.data.image_set import Skipped
from semisight.runs.captioner import Caption, Captioner, Search
from semisight.runs.predicting import columns

Format = Literal["table", "csv", "json"]
_IMAGES_SHOWN = 50  # more than this nobody reads on a terminal
_DIGITS = 4


def written(
    names: Sequence[str],
    captions: Sequence[Sequence[Caption]],
    skipped: Sequence[Skipped],
    captioner: Captioner,
    search: Search,
    kind: Format,
) -> str:
    """The captions as text that ends in a line break."""
    if kind == "csv":
        return _as_csv(names, captions)
    if kind == "json":
        content = _as_json(names, captions, skipped, captioner, search)
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    return _as_table(names, captions)


def _as_csv(names: Sequence[str], captions: Sequence[Sequence[Caption]]) -> str:
    """A row for each caption: file, rank (1 is the best), caption, log_probability."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", "rank", "caption", "log_probability"])
    for name, of_image in zip(names, captions, strict=True):
        for rank, one in enumerate(of_image, start=1):
            writer.writerow([name, rank, one.text, round(one.log_prob, _DIGITS)])
    return text.getvalue()


def _as_json(
    names: Sequence[str],
    captions: Sequence[Sequence[Caption]],
    skipped: Sequence[Skipped],
    captioner: Captioner,
    search: Search,
) -> dict[str, Any]:
    return {
        "codes": search.n_codes,
        "beam": search.beam,
        "max_words": search.max_words,
        "vocabulary": len(captioner.vocabulary),
        "images": [
            {
                "file": name,
                "captions": [
                    {"caption": one.text, "log_probability": round(one.log_prob, _DIGITS)} for one in of_image
                ],
            }
            for name, of_image in zip(names, captions, strict=True)
        ],
        "skipped": [{"file": entry.name, "reason": entry.reason} for entry in skipped],
    }


def _as_table(names: Sequence[str], captions: Sequence[Sequence[Caption]]) -> str:
    rows = [("file", "log p", "caption")]
    for name, of_image in list(zip(names, captions, strict=True))[:_IMAGES_SHOWN]:
        for rank, one in enumerate(of_image):
            rows.append(("" if rank else name, f"{one.log_prob:.2f}", one.text or "(no word)"))
    lines = columns(rows, right=(1,))
    if len(names) > _IMAGES_SHOWN:
        lines.append(f"... and {len(names) - _IMAGES_SHOWN:,} images more: --format csv or json gives all of them")
    return "\n".join(lines) + "\n"
