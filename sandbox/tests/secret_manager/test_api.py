from __future__ import annotations

import google_crc32c
import pytest
from google.api_core.exceptions import (
    AlreadyExists,
    BadRequest,
    Conflict,
    Forbidden,
    NotFound,
    ServiceUnavailable,
    TooManyRequests,
)
from google.cloud import secretmanager
from llmbeam_sandbox import Fault

from tests.clouds import authorized

PARENT = "projects/llmbeam-sandbox"
REPLICATION = {"replication": {"automatic": {}}}
METHOD = "secretmanager.versions.access"


@pytest.fixture
def client(google):
    with secretmanager.SecretManagerServiceClient(transport="rest") as opened:
        yield opened


@pytest.fixture
def secret(client):
    return client.create_secret(parent=PARENT, secret_id="gemini-key", secret=REPLICATION).name


def access(client, name):
    return client.access_secret_version(name=name, retry=None)


def test_latest_is_the_newest_version_of_a_secret(client, secret) -> None:
    assert secret == f"{PARENT}/secrets/gemini-key"
    for number, data in enumerate((b"first", b"second"), start=1):
        made = client.add_secret_version(parent=secret, payload={"data": data})
        assert (made.name, made.state.name) == (f"{secret}/versions/{number}", "ENABLED")
    newest = access(client, f"{secret}/versions/latest")
    assert (newest.name, newest.payload.data) == (f"{secret}/versions/2", b"second")
    assert newest.payload.data_crc32c == google_crc32c.value(b"second")
    assert access(client, f"{secret}/versions/1").payload.data == b"first"


def test_secrets_and_versions_are_listed_in_pages(client) -> None:
    for number in range(5):
        client.create_secret(parent=PARENT, secret_id=f"s{number}", secret=REPLICATION)
    client.create_secret(parent="projects/another", secret_id="s", secret=REPLICATION)
    listed = client.list_secrets(request={"parent": PARENT, "page_size": 2})
    assert [one.name.rpartition("/")[2] for one in listed] == ["s0", "s1", "s2", "s3", "s4"]
    parent = f"{PARENT}/secrets/s0"
    for data in (b"a", b"b", b"c"):
        client.add_secret_version(parent=parent, payload={"data": data})
    versions = client.list_secret_versions(request={"parent": parent, "page_size": 2})
    assert [one.name.rpartition("/")[2] for one in versions] == ["3", "2", "1"]
    assert client.get_secret(name=parent).replication.automatic is not None


def test_a_missing_secret_or_version_is_404(client, secret) -> None:
    for name in (f"{PARENT}/secrets/none/versions/latest", f"{secret}/versions/latest", f"{secret}/versions/7"):
        with pytest.raises(NotFound, match="not found"):
            access(client, name)
    with pytest.raises(NotFound, match="none"):
        client.get_secret(name=f"{PARENT}/secrets/none")


def test_a_secret_can_be_created_only_once(client, secret) -> None:
    with pytest.raises((AlreadyExists, Conflict), match="already exists"):
        client.create_secret(parent=PARENT, secret_id="gemini-key", secret=REPLICATION)


@pytest.mark.parametrize(
    ("secret_id", "body", "words"),
    [("a.b", REPLICATION, "does not match"), ("a", {}, r"Secret\.replication")],
    ids=["name", "replication"],
)
def test_a_bad_secret_is_refused(client, secret_id, body, words) -> None:
    with pytest.raises(BadRequest, match=words):
        client.create_secret(parent=PARENT, secret_id=secret_id, secret=body)


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({"data": b""}, "1 to 65536 bytes; got 0"),
        ({"data": b"x" * 65_537}, "got 65537"),
        ({"data": b"x", "data_crc32c": 1}, "checksum"),
    ],
    ids=["empty", "long", "checksum"],
)
def test_a_bad_payload_is_refused(client, secret, payload, words) -> None:
    with pytest.raises(BadRequest, match=words):
        client.add_secret_version(parent=secret, payload=payload)


def test_a_payload_that_is_not_base64_is_refused(http, sandbox) -> None:
    http.headers.update(authorized(sandbox))
    http.post("/v1/projects/p/secrets?secretId=s", json=REPLICATION)
    refused = http.post("/v1/projects/p/secrets/s:addVersion", json={"payload": {"data": "?"}})
    assert refused.status_code == 400
    assert refused.json()["error"]["status"] == "INVALID_ARGUMENT"


def test_a_fault_has_the_error_of_google(client, secret, sandbox) -> None:
    client.add_secret_version(parent=secret, payload={"data": b"k"})
    sandbox.faults.queue(
        METHOD,
        Fault(kind="error", http_status=403),
        Fault(kind="error", http_status=503),
        Fault(kind="rate-limit"),
    )
    for error in (Forbidden, ServiceUnavailable, TooManyRequests):
        with pytest.raises(error):
            access(client, f"{secret}/versions/latest")
    assert access(client, f"{secret}/versions/latest").payload.data == b"k"


def test_a_reset_deletes_all_secrets(client, secret, sandbox) -> None:
    sandbox.reset()
    assert list(client.list_secrets(parent=PARENT)) == []
