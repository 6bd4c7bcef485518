"""The real client of Cloud Storage against a server with scripted replies."""

from __future__ import annotations

import pytest
from google.api_core.client_options import ClientOptions
from google.auth import exceptions as auth
from google.auth.credentials import AnonymousCredentials

from airflow_provider_llmbeam.exceptions import AccessDeniedError, CloudNotFoundError
from airflow_provider_llmbeam.hooks.google import base as google
from airflow_provider_llmbeam.hooks.storage import StorageHook


@pytest.fixture
def hook(server, monkeypatch):
    monkeypatch.setattr(google, "RETRY_SECONDS", 0.5)

    class LocalHook(StorageHook):
        def get_client_options(self, *arguments):
            return ClientOptions(api_endpoint=f"http://127.0.0.1:{server.server_port}")

        def get_credentials(self):
            return AnonymousCredentials()

    return LocalHook("acme-prod")


def test_a_directory_is_checked_by_listing_one_object(server, hook):
    server.on("GET", "/storage/v1/b/rows/o", {"items": []})
    hook.check("gs://rows/state/")
    # The client requests the bucket in another thread, to name it in traces.
    (query,) = [request[2] for request in server.received if request[1].endswith("/o")]
    assert (query["prefix"], query["maxResults"]) == (["state/"], ["1"])


@pytest.mark.parametrize(
    ("status", "words", "error", "message"),
    [
        (404, "The specified bucket does not exist.", CloudNotFoundError, "There is no bucket 'gs://rows'"),
        (403, "No access.", AccessDeniedError, "`roles/storage.objectAdmin`"),
    ],
)
def test_an_unusable_bucket_is_an_error(server, hook, refusal, status, words, error, message):
    server.on("GET", "/storage/v1/b/rows/o", refusal(status, words))
    with pytest.raises(error, match=message):
        hook.check("gs://rows/state/")


def test_a_missing_object_is_an_error(server, hook, refusal):
    server.on("GET", "/download/storage/v1/b/rows/o/out%2Freport.json", refusal(404, "No such object."))
    with pytest.raises(CloudNotFoundError, match=r"There is no object 'gs://rows/out/report.json'"):
        hook.read("gs://rows/out/report.json")


def test_a_written_object_is_read_back(google):
    hook = StorageHook(google.project)
    hook.write("gs://rows/a/spec.json", '{"ö": 1}')
    assert hook.read("gs://rows/a/spec.json") == '{"ö": 1}'


def test_objects_of_bytes_are_listed_and_deleted(google):
    hook = StorageHook(google.project)
    for name in ("1-a", "1-b", "2-a"):
        hook.write(f"gs://rows/stage/{name}.parquet", b"PAR1\xff")
    for uri in hook.list("gs://rows/stage/1-"):
        hook.delete(uri)
    assert hook.list("gs://rows/stage/") == ["gs://rows/stage/2-a.parquet"]


def test_missing_credentials_are_an_error():
    class Without(StorageHook):
        def get_credentials(self):
            raise auth.DefaultCredentialsError("Your default credentials were not found.")

    with pytest.raises(AccessDeniedError, match="gives no credentials"):
        Without("acme-prod").check("gs://rows/")


def test_objects_are_listed_by_the_beginning_of_their_addresses(google):
    hook = StorageHook(google.project)
    for name in ("1-a.json", "1-b.json", "2-a.json"):
        hook.write(f"gs://rows/progress/{name}", "{}")
    assert hook.list("gs://rows/progress/1-") == ["gs://rows/progress/1-a.json", "gs://rows/progress/1-b.json"]
