"""Google's own client of Cloud Storage, which writes with a key, against the sandbox."""

from __future__ import annotations

import pytest
from google.cloud import storage

from airflow_provider_llmbeam.hooks.storage import StorageHook
from airflow_provider_llmbeam.transport.object_keys import encrypt_objects

KEY = "projects/keys/locations/us/keyRings/llmbeam/cryptoKeys/state"


@pytest.fixture
def bucket(google):
    client = storage.Client()
    encrypt_objects(client, KEY)
    return client.bucket("rows")


def keys() -> dict[str, str | None]:
    return {blob.name: blob.kms_key_name for blob in storage.Client().list_blobs("rows")}


def resumable(bucket: storage.Bucket) -> None:
    with bucket.blob("made").open("wb", chunk_size=2**18) as file:
        file.write(bytes(2**20))


def rewritten(bucket: storage.Bucket) -> None:
    blob = bucket.blob("made")
    blob.upload_from_string("old")
    blob.reload()  # now its key is a version, which the client does not send
    blob.upload_from_string("new", if_generation_match=blob.generation)


def copied(bucket: storage.Bucket, *, is_batch: bool = False) -> None:
    plain = storage.Client().bucket("rows").blob("a b/ü")
    plain.upload_from_string("x")
    if is_batch:
        with bucket.client.batch():
            bucket.copy_blob(bucket.blob("a b/ü"), bucket, "made")
    else:
        bucket.copy_blob(bucket.blob("a b/ü"), bucket, "made")
    plain.delete()


WRITES = {
    "an upload": lambda bucket: bucket.blob("made").upload_from_string("x"),
    "an upload in parts": resumable,
    "an upload over an object that was read": rewritten,
    "a copy": copied,
    "a copy in a batch": lambda bucket: copied(bucket, is_batch=True),
    "a rewrite": lambda bucket: bucket.blob("made").rewrite(_uploaded(bucket)),
    "a composition": lambda bucket: bucket.blob("made").compose([_uploaded(bucket)]),
}


def _uploaded(bucket: storage.Bucket) -> storage.Blob:
    blob = bucket.blob("made")
    blob.upload_from_string("x")
    return blob


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_a_write_has_the_key(bucket, write):
    write(bucket)
    assert keys() == {"made": f"{KEY}/cryptoKeyVersions/1"}


def test_without_a_key_nothing_is_added(google):
    client = storage.Client()
    encrypt_objects(client, None)
    client.bucket("rows").blob("made").upload_from_string("x")
    assert keys() == {"made": None}


def test_the_worker_of_airflow_writes_with_the_key_of_the_job(google):
    StorageHook(google.project, kms_key_name=KEY).write("gs://rows/spec.json", "{}")
    assert keys() == {"spec.json": f"{KEY}/cryptoKeyVersions/1"}
