"""schemathesis makes up requests from the OpenAPI description, right ones and wrong ones, and finds nothing."""

from pathlib import Path

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.app.serve.conftest import client_of, png, wait_until_read

# A file is any bytes to OpenAPI; one that is meant to be accepted has to be an image.
schemathesis.openapi.format("binary", st.sampled_from([png(3), png(5, size=30, kind="JPEG")]))


@pytest.fixture(scope="module")
def served(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> TestClient:  # type: ignore[misc]
    table = tmp_path_factory.mktemp("schema") / "labels.csv"
    with client_of(digits_run, labels=table) as client:
        wait_until_read(client)
        # Training is started by a child process, which is tested elsewhere.
        client.app.state.service.training.start = lambda command, beside: None  # type: ignore[attr-defined]
        yield client


@pytest.fixture(scope="module")
def api(served: TestClient) -> object:
    return schemathesis.openapi.from_asgi("/api/openapi.json", served.app, headers={"Host": "localhost"})


schema = schemathesis.pytest.from_fixture("api")


@schema.parametrize()
@settings(max_examples=12, derandomize=True, suppress_health_check=list(HealthCheck))
def test_nothing_is_found(case: schemathesis.Case) -> None:
    case.call_and_validate(headers={"Host": "localhost"})
