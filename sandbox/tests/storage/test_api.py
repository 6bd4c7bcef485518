from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator

import apache_beam as beam
import pytest
import requests
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions
from google.api_core.exceptions import BadRequest, Conflict, NotFound, PreconditionFailed, ServiceUnavailable
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.cloud.storage.retry import DEFAULT_RETRY
from llmbeam_sandbox import Fault, Sandbox
from llmbeam_sandbox.core.records import RequestRecord

RETRY = DEFAULT_RETRY.with_delay(initial=0.01, maximum=0.05).with_timeout(5)


@pytest.fixture(scope="module")
def cloud() -> Iterator[Sandbox]:
    with Sandbox(buckets=("rows", "other")) as running:
        yield running


@pytest.fixture
def gcs(cloud: Sandbox) -> Iterator[Sandbox]:
    cloud.reset()
    yield cloud
    cloud.faults.assert_all_consumed()


@pytest.fixture
def client(gcs: Sandbox) -> Iterator[storage.Client]:
    made = storage.Client(
        project="p", credentials=AnonymousCredentials(), client_options={"api_endpoint": gcs.authorized_url}
    )
    yield made
    made.close()


@pytest.fixture
def bucket(client: storage.Client) -> storage.Bucket:
    return client.bucket("rows")


def write(bucket: storage.Bucket, *names: str) -> None:
    for name in names:
        bucket.blob(name).upload_from_string(name)


def delete_in_batch(client: storage.Client, bucket: storage.Bucket, *names: str) -> None:
    with client.batch():
        for name in names:
            bucket.blob(name).delete()


def uploads(gcs: Sandbox) -> list[RequestRecord]:
    return [record for record in gcs.requests if record.method == "storage.objects.insert"]


def test_an_uploaded_object_is_downloaded_unchanged(bucket: storage.Bucket) -> None:
    blob = bucket.blob("a dir/ü+%2F.jsonl")
    blob.metadata = {"run": "7"}
    blob.upload_from_string(b'{"a": 1}\n', content_type="application/jsonl")
    found = bucket.get_blob("a dir/ü+%2F.jsonl")
    assert found.download_as_bytes() == b'{"a": 1}\n'
    assert (found.size, found.content_type, found.metadata) == (9, "application/jsonl", {"run": "7"})
    assert found.crc32c == blob.crc32c
    assert found.time_created.tzinfo is not None


@pytest.mark.parametrize("size", [0, 1, 300_000, 1_000_000])
def test_a_resumable_upload_arrives_whole(bucket: storage.Bucket, size: int) -> None:
    data = os.urandom(size)
    blob = bucket.blob("big", chunk_size=262_144)
    blob.upload_from_file(io.BytesIO(data), if_generation_match=0)
    assert bucket.blob("big").download_as_bytes() == data


def test_a_stream_of_unknown_length_arrives_whole(bucket: storage.Bucket) -> None:
    with bucket.blob("stream").open("wb", chunk_size=262_144) as file:
        for _ in range(7):
            file.write(b"x" * 100_000)
    assert bucket.get_blob("stream").size == 700_000


def test_a_range_includes_both_bounds(bucket: storage.Bucket) -> None:
    blob = bucket.blob("r")
    blob.upload_from_string("0123456789")
    assert blob.download_as_bytes(start=2, end=4) == b"234"
    assert blob.download_as_bytes(start=8, end=99) == b"89"
    assert blob.download_as_bytes(start=-3) == b"789"
    assert blob.open("rb", chunk_size=4).read() == b"0123456789"


def test_a_missing_object_and_a_missing_bucket_have_different_errors(
    client: storage.Client, bucket: storage.Bucket
) -> None:
    assert bucket.get_blob("no") is None
    assert not bucket.blob("no").exists()
    with pytest.raises(NotFound, match="No such object: rows/no"):
        bucket.blob("no").download_as_bytes()
    with pytest.raises(NotFound, match="No such object: rows/no"):
        bucket.blob("no").reload()
    with pytest.raises(NotFound, match="The specified bucket does not exist"):
        client.bucket("nobody").blob("x").upload_from_string("x")


def test_only_one_of_two_creates_wins(bucket: storage.Bucket) -> None:
    bucket.blob("lock").upload_from_string("first", if_generation_match=0)
    with pytest.raises(PreconditionFailed, match="pre-conditions you specified did not hold"):
        bucket.blob("lock").upload_from_string("second", if_generation_match=0)
    big = bucket.blob("lock", chunk_size=262_144)
    with pytest.raises(PreconditionFailed):
        big.upload_from_file(io.BytesIO(b"x" * 300_000), if_generation_match=0)
    assert bucket.blob("lock").download_as_bytes() == b"first"


def test_a_write_onto_an_older_generation_is_refused(bucket: storage.Bucket) -> None:
    blob = bucket.blob("state")
    blob.upload_from_string("1")
    seen = blob.generation
    blob.upload_from_string("2", if_generation_match=seen)
    assert blob.generation > seen
    with pytest.raises(PreconditionFailed):
        blob.upload_from_string("3", if_generation_match=seen)
    with pytest.raises(PreconditionFailed):
        blob.delete(if_generation_match=seen)
    with pytest.raises(NotFound):
        bucket.blob("state", generation=seen).download_as_bytes()


def test_changed_fields_change_the_metageneration_only(bucket: storage.Bucket) -> None:
    blob = bucket.blob("m")
    blob.upload_from_string("x")
    before = blob.generation
    blob.metadata = {"a": "1"}
    blob.patch(if_metageneration_match=1)
    assert (blob.generation, blob.metageneration, blob.metadata) == (before, 2, {"a": "1"})
    with pytest.raises(PreconditionFailed):
        blob.patch(if_metageneration_match=1)


def test_a_list_comes_in_pages_in_the_order_of_names(client: storage.Client, bucket: storage.Bucket) -> None:
    write(bucket, "a/2", "a/1", "b", "a/c/3", "z")
    assert [blob.name for blob in client.list_blobs("rows", page_size=2)] == ["a/1", "a/2", "a/c/3", "b", "z"]
    assert [blob.name for blob in client.list_blobs("rows", match_glob="a/*")] == ["a/1", "a/2"]
    assert [blob.name for blob in client.list_blobs("rows", match_glob="**/{1,3}")] == ["a/1", "a/c/3"]
    assert [blob.name for blob in client.list_blobs("rows", start_offset="a/2", end_offset="b")] == [
        "a/2",
        "a/c/3",
    ]
    folder = client.list_blobs("rows", prefix="a/", delimiter="/", page_size=1)
    assert [blob.name for blob in folder] == ["a/1", "a/2"]
    assert folder.prefixes == {"a/c/"}


def test_copies_rewrites_moves_and_compositions_hold_the_same_bytes(
    client: storage.Client, bucket: storage.Bucket
) -> None:
    write(bucket, "one", "two")
    copied = bucket.copy_blob(bucket.blob("one"), client.bucket("other"), "dir/one")
    rewritten = bucket.blob("three")
    assert rewritten.rewrite(bucket.blob("two")) == (None, 3, 3)
    whole = bucket.blob("whole")
    whole.compose([bucket.blob("one"), bucket.blob("two")], if_generation_match=0)
    moved = bucket.move_blob(bucket.blob("three"), "four")
    renamed = bucket.rename_blob(moved, "five")
    assert [blob.download_as_bytes() for blob in (copied, whole, renamed)] == [b"one", b"onetwo", b"two"]
    assert whole.component_count == 2
    assert [blob.name for blob in bucket.list_blobs()] == ["five", "one", "two", "whole"]


def test_a_batch_answers_each_call_separately(client: storage.Client, bucket: storage.Bucket) -> None:
    write(bucket, "a", "b")
    with pytest.raises(NotFound):
        delete_in_batch(client, bucket, "a", "nothing", "b")
    assert list(bucket.list_blobs()) == []


def test_buckets_are_created_listed_and_deleted(client: storage.Client) -> None:
    made = client.create_bucket("made-here", location="europe-west3")
    assert client.get_bucket("made-here").location == "europe-west3"
    assert [found.name for found in client.list_buckets()] == ["made-here", "other", "rows"]
    with pytest.raises(Conflict, match="you already own it"):
        client.create_bucket("made-here")
    write(made, "x")
    with pytest.raises(Conflict, match="is not empty"):
        made.delete()
    made.delete(force=True)
    assert client.lookup_bucket("made-here") is None


def test_a_bucket_name_that_google_would_refuse_is_refused() -> None:
    with pytest.raises(ValueError, match="`buckets` must be names of buckets"):
        Sandbox(buckets=("NO",))


def test_a_wrong_hash_is_refused(bucket: storage.Bucket) -> None:
    blob = bucket.blob("h")
    blob.md5_hash = "AAAAAAAAAAAAAAAAAAAAAA=="
    with pytest.raises(BadRequest, match="doesn't match calculated MD5 hash"):
        blob.upload_from_string("x")


def test_reset_keeps_only_the_initial_buckets(
    gcs: Sandbox, client: storage.Client, bucket: storage.Bucket
) -> None:
    write(bucket, "a")
    client.create_bucket("made-here")
    gcs.reset()
    assert [found.name for found in client.list_buckets()] == ["other", "rows"]
    assert list(bucket.list_blobs()) == []


def test_a_fault_is_consumed_once_and_the_client_retries(gcs: Sandbox, bucket: storage.Bucket) -> None:
    gcs.faults.queue("storage.objects.insert", Fault(kind="error", http_status=503), Fault(kind="rate-limit"))
    bucket.blob("a").upload_from_string("x", if_generation_match=0, retry=RETRY)
    met = uploads(gcs)
    assert [record.http_status for record in met] == [503, 429, 200]
    assert met[-1].resource == "rows/a"
    gcs.faults.queue("storage.objects.get", Fault(kind="error", http_status=503))
    with pytest.raises(ServiceUnavailable):
        bucket.blob("a").reload(retry=None)


def test_an_aborted_upload_creates_no_object(gcs: Sandbox, bucket: storage.Bucket) -> None:
    gcs.faults.queue("storage.objects.insert", Fault(kind="abort"))
    with pytest.raises(requests.ConnectionError):
        bucket.blob("a").upload_from_string(b"x" * 2_000_000, retry=None)
    assert 0 < uploads(gcs)[0].received_bytes <= 1_000_500
    assert not bucket.blob("a").exists()


def test_an_aborted_chunk_is_resumed_where_it_broke_off(gcs: Sandbox, bucket: storage.Bucket) -> None:
    data = os.urandom(3_000_000)
    gcs.faults.queue("storage.objects.insert", Fault(kind="abort"))
    blob = bucket.blob("a", chunk_size=1_048_576)
    blob.upload_from_file(io.BytesIO(data), if_generation_match=0, retry=RETRY)
    assert blob.download_as_bytes() == data
    gcs.faults.queue("storage.objects.insert", Fault(kind="error", http_status=503))
    blob.upload_from_file(io.BytesIO(data[::-1]), retry=RETRY)
    assert blob.download_as_bytes() == data[::-1]


def test_an_upload_whose_reply_is_lost_has_taken_effect(gcs: Sandbox, bucket: storage.Bucket) -> None:
    gcs.faults.queue("storage.objects.insert", Fault(kind="disconnect"))
    with pytest.raises(PreconditionFailed):
        bucket.blob("a").upload_from_string("x", if_generation_match=0, retry=RETRY)
    assert bucket.blob("a").download_as_bytes() == b"x"


def test_a_download_that_breaks_off_is_noticed(gcs: Sandbox, bucket: storage.Bucket) -> None:
    bucket.blob("a").upload_from_string(b"x" * 100_000)
    gcs.faults.queue("storage.objects.get", Fault(kind="truncated"))
    with pytest.raises(ConnectionError, match="read 50000 bytes"):
        bucket.blob("a").download_as_bytes(retry=None)
    gcs.faults.when("storage.objects.get", "rows/a", Fault(kind="drop"), times=1)
    assert bucket.blob("a").download_as_bytes(retry=RETRY) == b"x" * 100_000


def test_a_call_in_a_batch_gets_its_fault(gcs: Sandbox, client: storage.Client, bucket: storage.Bucket) -> None:
    write(bucket, "a", "b")
    gcs.faults.when("storage.objects.delete", "rows/b", Fault(kind="error", http_status=503), times=1)
    with pytest.raises(ServiceUnavailable):
        delete_in_batch(client, bucket, "a", "b")
    assert [blob.name for blob in bucket.list_blobs()] == ["b"]


def test_bytes_are_counted(gcs: Sandbox, bucket: storage.Bucket) -> None:
    bucket.blob("a").upload_from_string(b"x" * 5000)
    bucket.blob("a").download_as_bytes(start=0, end=999)
    stats = gcs.stats()
    assert stats["methods"]["storage.objects.insert"]["calls"] == 1
    assert 5000 <= stats["storage_bytes_received"] < 6000
    assert 1000 <= stats["storage_bytes_sent"] < 4000


def test_a_path_that_is_not_emulated_returns_404_with_a_message(gcs: Sandbox) -> None:
    answer = requests.get(f"{gcs.authorized_url}/storage/v1/b/rows/iam", timeout=60)
    assert answer.status_code == 404
    assert "The sandbox does not emulate this: GET /storage/v1/b/rows/iam" in answer.text


@pytest.fixture
def beam_filesystem(gcs: Sandbox, credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.authorized_url)
    FileSystems.set_options(PipelineOptions())


@pytest.mark.usefixtures("beam_filesystem")
def test_beam_reads_writes_matches_renames_and_deletes(bucket: storage.Bucket) -> None:
    for index in range(3):
        with FileSystems.create(f"gs://rows/in/{index}.txt", "text/plain", "uncompressed") as file:
            file.write(b"row %d\n" % index)
    assert FileSystems.open("gs://rows/in/1.txt").read() == b"row 1\n"
    (matched,) = FileSystems.match(["gs://rows/in/*.txt"])
    assert [found.path for found in matched.metadata_list] == [f"gs://rows/in/{index}.txt" for index in range(3)]
    FileSystems.rename(
        ["gs://rows/in/0.txt", "gs://rows/in/1.txt"], ["gs://rows/out/0.txt", "gs://rows/out/1.txt"]
    )
    FileSystems.delete(["gs://rows/in/2.txt"])
    assert [blob.name for blob in bucket.list_blobs()] == ["out/0.txt", "out/1.txt"]
    assert FileSystems.checksum("gs://rows/out/0.txt")
    assert not FileSystems.exists("gs://rows/in/2.txt")


@pytest.mark.usefixtures("beam_filesystem")
def test_a_beam_pipeline_reads_and_writes_objects(bucket: storage.Bucket) -> None:
    bucket.blob("in/a.jsonl").upload_from_string("".join(json.dumps({"id": n}) + "\n" for n in range(50)))
    with beam.Pipeline(options=PipelineOptions()) as pipeline:
        _ = (
            pipeline
            | beam.io.ReadFromText("gs://rows/in/*.jsonl")
            | beam.Map(lambda line: str(json.loads(line)["id"]))
            | beam.io.WriteToText("gs://rows/out/part", shard_name_template="-SS", num_shards=1)
        )
    assert sorted(map(int, bucket.blob("out/part-00").download_as_text().split())) == list(range(50))
