"""Samples of shards, Parquet or a folder for training loops of one's own: dealt, shuffled, resumed.

    epoch e      parts in the order of (seed, e)
    who          process p of P, worker w of W: every (p W + w)-th part of P W; no sample twice, none missing
    shuffled     within a window of `window` samples, by (seed, e) and the number of the window
    resumed      from sample `start` of one's own on, the same that would have come there

What comes depends on the arguments alone. `semisight train` needs none of this: it decodes a source once into a file
that is mapped, and takes batches from anywhere in it.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from semisight.data.samples import Part, Sample, parts_of, read_part
from semisight.errors import UserError
from semisight.random import Stream, random_order


@dataclass(frozen=True)
class SampleStream:
    """A source that is read from start to end, again and again.

    Args:
        source: shards, Parquet files or a folder, here or at a URL.
        seed: the same seed gives the same order.
        window: so many samples are held and shuffled at a time; 1 leaves them in order within a part.
        process: number of this process and how many there are, for instance (rank, world_size).
        worker: the same for the workers of a process.

    Example:
        >>> import semisight as ss
        >>> stream = ss.SampleStream("builtin:digits", window=10)
        >>> len({sample.name for sample in stream.epoch(0)})
        1797
    """

    source: str
    seed: int = 0
    window: int = 1000
    process: tuple[int, int] = (0, 1)
    worker: tuple[int, int] = (0, 1)
    parts: Sequence[Part] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        for number, of in (self.process, self.worker):
            if not 0 <= number < of:
                raise UserError(f"number {number} of {of} is no process or worker: they count from 0.")
        if self.window < 1:
            raise UserError(f"a stream is shuffled in windows of at least 1 sample, not {self.window}")
        if not self.parts:
            object.__setattr__(self, "parts", tuple(parts_of(self.source)))

    def epoch(self, number: int, start: int = 0) -> Iterator[Sample]:
        """The samples of one pass that are this process's and worker's, from its sample `start` on."""
        (p, processes), (w, workers) = self.process, self.worker
        order = random_order(len(self.parts), self.seed, Stream.STREAM_PARTS, number).tolist()
        own = [self.parts[i] for i in order[p * workers + w :: processes * workers]]
        samples = itertools.chain.from_iterable(map(read_part, own))
        for turn in itertools.count():
            held = list(itertools.islice(samples, self.window))
            if not held:
                return
            if start >= len(held):  # read, for a tar file has no other way to its middle, and not decoded
                start -= len(held)
                continue
            shuffled = random_order(len(held), self.seed, Stream.STREAM_SAMPLES, number, turn).tolist()
            yield from (held[i] for i in shuffled[start:])
            start = 0
