"""What a server counts, for Prometheus: requests and how long they took, images, labels, what waits.

`GET /metrics`, with the token if there is one (Prometheus sends it: `authorization: {credentials: TOKEN}`).
"""

import time
from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = CONTENT_TYPE_LATEST
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
        self.in_flight = Gauge("semisight_requests_in_flight", "Requests read or answered now.", registry=registry)
        started = Gauge("semisight_start_time_seconds", "When the server was started.", registry=registry)
        started.set(time.time())

    def follow(self, name: str, words: str, value: Callable[[], float]) -> None:
        """A figure that is asked for when somebody looks."""
        Gauge(f"semisight_{name}", words, registry=self._registry).set_function(value)

    def text(self) -> bytes:
        return generate_latest(self._registry)
