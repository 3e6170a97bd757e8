"""One worker process: a job on the first line of its input, then a part on each further line; a line of JSON for each.

python -m semisight.engines.worker
"""

import importlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from semisight.engines import Worker
from semisight.errors import UserError


def make(name: str, job: Mapping[str, Any]) -> Worker:
    """The worker of that name, "module:Class", made from a job."""
    module, _, own = name.partition(":")
    found: Worker = getattr(importlib.import_module(module), own)(job)
    return found


def main() -> None:
    # When the user interrupts, or the process that started this one is gone, it ends without a word.
    for name in ("SIGINT", "SIGPIPE"):
        if number := getattr(signal, name, None):
            signal.signal(number, signal.SIG_DFL)
    answers = os.fdopen(os.dup(1), "w")  # what a library prints goes to stderr, not between the answers
    os.dup2(2, 1)
    first = json.loads(sys.stdin.readline())
    try:
        worker = make(first["worker"], first["job"])
        for line in sys.stdin:
            print(json.dumps(dict(worker(line.rstrip("\n")))), file=answers, flush=True)
    except UserError as error:
        print(json.dumps({"error": str(error)}), file=answers, flush=True)


if __name__ == "__main__":
    main()
