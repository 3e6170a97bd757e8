"""`semisight train` as a child of the server: once the server is gone, however it went, it saves and ends.

The server holds the other end of the child's standard input and never writes to it. When the server dies, even by
SIGKILL, the system closes that end, and reading comes to its end here: on any system, and at any moment.
"""

import os
import runpy
import signal
import sys
import threading

_PATIENCE = 120.0  # seconds for the step at hand and for saving


def end_with_parent() -> None:
    """As if somebody had sent SIGTERM: a training finishes its step and saves; all else just ends."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(_PATIENCE)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, name="semisight-parent", daemon=True).start()
    runpy.run_module("semisight", run_name="__main__", alter_sys=True)  # the command line, with these arguments
