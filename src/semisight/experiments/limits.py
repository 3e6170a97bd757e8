"""What a row of a table may take."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    minutes: float
    threads: int
    progress: bool
    smoke: bool
