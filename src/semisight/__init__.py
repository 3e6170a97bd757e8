"""Learns from a pile of images of which only a few carry a label or a caption.

The names below are imported when first used, so that `import semisight` and the command line's help stay quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from semisight.errors import UserError
    from semisight.estimator import SemiSight

_HOME_OF = {
    "SemiSight": "semisight.estimator",
    "UserError": "semisight.errors",
}

__all__ = ["SemiSight", "UserError", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'semisight' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value  # the next use does not come through here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
