"""Files to tensors: everything between what people have on disk and what the model reads.

`load` reads any of the sources; it imports torch only when it is called.
"""

from semisight.data.sources import ACCEPTED, load

__all__ = ["ACCEPTED", "load"]
