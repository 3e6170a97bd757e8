"""The benchmark of the server at its smallest: a server, two clients, no failed request."""

from pathlib import Path

from benchmarks.serving import WORKERS, Load, digit, load, server


def test_two_clients_are_answered_without_failure(digits_run: Path, tmp_path: Path) -> None:
    image = tmp_path / "digit.png"
    image.write_bytes(digit())
    with server(digits_run, 32, tmp_path / "labels.csv") as running:
        found = load(running, 1.0, 3, image)
    assert found.failed == ()
    assert len(found.times) >= 3 * WORKERS
    assert found.per_second > 0 and 0 < found.at(0.5) <= found.at(0.99)
    assert found.processor > 0


def test_percentiles() -> None:
    found = Load(tuple(range(100, 0, -1)), (), 10.0, 2.0)
    assert (found.at(0.5), found.at(0.99), found.per_second, found.processor_ms) == (51, 100, 10, 20)
