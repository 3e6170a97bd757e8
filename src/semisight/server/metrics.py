"""What a server counts, for Prometheus: requests and how long they took, images, labels, what waits.

`GET /metrics`, with the token if there is one (Prometheus sends it: `authorization: {credentials: TOKEN}`).

With several workers (workers.py) each keeps its figures in files of a common folder, by Prometheus's own means, and
whoever is asked answers for all: counts are summed up, those of workers that have ended too.
"""

import os
import time
from collections.abc import Callable
from typing import Literal

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

CONTENT_TYPE = CONTENT_TYPE_LATEST
FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # the variable by which prometheus_client is told of the folder
# How the figures of several workers become one: the sum or the largest of those alive, or the sum of all there were.
Together = Literal["livesum", "livemax", "sum"]
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """The figures of one server; several may live in one process, in tests."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.requests = Counter(
            "semisight_requests", "Requests answered.", ("path", "method", "status"), registry=registry
        )
        self.seconds = Histogram(
            "semisight_request_seconds", "From the header to the last byte.", ("path",), buckets=_SECONDS,
            registry=registry,
        )  # fmt: skip
        self.labels = Counter("semisight_label_changes", "Changes of labels and captions.", registry=registry)
        self._followed: list[tuple[Gauge, Callable[[], float]]] = []
        self.in_flight = self._gauge("requests_in_flight", "Requests read or answered now.")
        self._gauge("workers", "Processes that answer.").set(1)
        started = Gauge(
            "semisight_start_time_seconds", "When the server was started.", registry=registry, multiprocess_mode="min"
        )
        started.set(time.time())

    def _gauge(self, name: str, words: str, together: Together = "livesum") -> Gauge:
        return Gauge(f"semisight_{name}", words, registry=self._registry, multiprocess_mode=together)

    def follow(self, name: str, words: str, value: Callable[[], float], together: Together = "livesum") -> None:
        """A figure that is asked for when somebody looks."""
        self._followed.append((self._gauge(name, words, together), value))

    def sample(self) -> None:
        """Asks for the figures that are followed; with several workers each does so now and then, for the others."""
        for gauge, value in self._followed:
            gauge.set(value())

    def text(self) -> bytes:
        self.sample()
        if FOLDER not in os.environ:
            return generate_latest(self._registry)
        every = CollectorRegistry()
        MultiProcessCollector(every)
        return generate_latest(every)
