"""Ctrl-C and SIGTERM: finish the step, save, and leave with a message that says how to go on."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Interrupted(Exception):
    """Training was stopped by a signal after a checkpoint was saved; `exit_code` is what a shell expects (130, 143)."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number
        self.exit_code = 128 + signal_number


class SignalFlag:
    """The number of the first signal that came, or 0."""

    def __init__(self) -> None:
        self.number = 0


@contextlib.contextmanager
def caught_signals(notice: bool = True) -> Iterator[SignalFlag]:
    """Inside, the first SIGINT or SIGTERM only raises the flag; a second one does what it did before.

    Outside the main thread Python cannot catch signals: the flag then stays down.
    """
    flag = SignalFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def catch(number: int, frame: FrameType | None) -> None:
        flag.number = number
        for each, handler in former.items():
            signal.signal(each, handler)
        if notice:
            name = signal.Signals(number).name
            # not print: the signal may have come in the middle of one, which cannot be entered twice
            os.write(2, f"\n{name}: finishing the step and saving. Once more stops at once.\n".encode())

    for number in former:
        signal.signal(number, catch)
    try:
        yield flag
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
