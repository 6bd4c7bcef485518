"""Keys of the workers, read from the emulated Secret Manager with the real client."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from google.cloud import secretmanager
from llmbeam_sandbox import Fault

from airflow_provider_llmbeam.exceptions import JobFailedError, JobRefusedError
from airflow_provider_llmbeam.pipeline import secrets
from airflow_provider_llmbeam.pipeline.secrets import load_environment

METHOD = "secretmanager.versions.access"
PARENT = "projects/llmbeam-sandbox"
LATEST = f"{PARENT}/secrets/key/versions/latest"
VARIABLE = "LLMBEAM_TEST_KEY"


@pytest.fixture(autouse=True)
def _no_variable() -> Iterator[None]:
    os.environ.pop(VARIABLE, None)
    yield
    os.environ.pop(VARIABLE, None)


@pytest.fixture
def put(google):
    """Returns a function that creates the secret `key` in Secret Manager."""

    def put_secret(data):
        with secretmanager.SecretManagerServiceClient(transport="rest") as client:
            secret = client.create_secret(
                parent=PARENT, secret_id="key", secret={"replication": {"automatic": {}}}
            )
            client.add_secret_version(parent=secret.name, payload={"data": data})

    return put_secret


def reads(sandbox):
    return sum(one.method == METHOD for one in sandbox.requests)


def test_a_secret_becomes_a_variable_without_its_line_break(put) -> None:
    put(b"s3cret\n")
    load_environment({VARIABLE: LATEST})
    assert os.environ[VARIABLE] == "s3cret"


def test_a_secret_is_fetched_once_for_all_threads(put, sandbox) -> None:
    put(b"s3cret")
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: load_environment({VARIABLE: LATEST}), range(16)))
    assert os.environ[VARIABLE] == "s3cret"
    assert reads(sandbox) == 1


def test_a_variable_that_is_set_is_kept_and_no_secret_is_fetched(sandbox, monkeypatch) -> None:
    monkeypatch.setenv(VARIABLE, "mine")
    load_environment({VARIABLE: LATEST})
    load_environment({})
    assert os.environ[VARIABLE] == "mine"
    assert reads(sandbox) == 0


def test_the_error_names_a_missing_secret(google) -> None:
    with pytest.raises(JobRefusedError, match=rf"'{LATEST}', for '{VARIABLE}', does not exist: .*not found"):
        load_environment({VARIABLE: LATEST})


def test_a_missing_permission_names_the_role(put, sandbox) -> None:
    put(b"s3cret")
    sandbox.faults.queue(METHOD, Fault(kind="error", http_status=403))
    with pytest.raises(JobRefusedError, match=r"may not be read: .*roles/secretmanager\.secretAccessor"):
        load_environment({VARIABLE: LATEST})


def test_the_error_names_a_disabled_version(put, sandbox) -> None:
    put(b"s3cret")
    sandbox.faults.queue(METHOD, Fault(kind="error", http_status=400, message="It is in DISABLED state."))
    with pytest.raises(JobRefusedError, match=r"cannot be read: It is in DISABLED state\. Enable it"):
        load_environment({VARIABLE: LATEST})


@pytest.mark.parametrize("data", [b"s3cret\xff", b"s3\0cret", b"\n"], ids=["binary", "nul", "empty"])
def test_a_secret_that_is_not_text_is_refused_and_never_quoted(put, data) -> None:
    put(data)
    with pytest.raises(JobRefusedError, match=r"empty or not UTF-8 text") as caught:
        load_environment({VARIABLE: LATEST})
    assert "s3" not in str(caught.value)
    assert "cret'" not in str(caught.value)
    assert VARIABLE not in os.environ


def test_transient_errors_are_retried(put, sandbox) -> None:
    put(b"s3cret")
    faults = Fault(kind="rate-limit"), Fault(kind="error", http_status=503), Fault(kind="disconnect")
    sandbox.faults.queue(METHOD, *faults)
    load_environment({VARIABLE: LATEST})
    assert os.environ[VARIABLE] == "s3cret"


def test_an_unavailable_service_is_a_retryable_error(put, sandbox, monkeypatch) -> None:
    put(b"s3cret")
    monkeypatch.setattr(secrets, "TIMEOUT_SECONDS", 0.3)
    sandbox.faults.every(METHOD, 1, Fault(kind="error", http_status=503))
    with pytest.raises(JobFailedError, match=rf"'{LATEST}', for '{VARIABLE}', could not be read within"):
        load_environment({VARIABLE: LATEST})


def test_missing_credentials_of_the_worker_are_an_error(monkeypatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent.json")
    with pytest.raises(JobRefusedError, match=r"no Google credentials to read secrets with: .*nonexistent\.json"):
        load_environment({VARIABLE: LATEST})
