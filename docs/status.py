"""Makes docs/status.md from results/: `python docs/status.py`."""

from pathlib import Path

from semisight.experiments.status import page

HERE = Path(__file__).parent
PAGE = HERE / "status.md"


def made() -> str:
    return page(HERE.parent / "results")


if __name__ == "__main__":
    PAGE.write_text(made(), encoding="utf-8")
