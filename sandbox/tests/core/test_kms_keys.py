"""Keys of Cloud KMS: each service keeps them on its resources, and refuses those that cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from llmbeam_sandbox import Sandbox

from tests.clouds import authorized

RING = "projects/keys/locations/{}/keyRings/r/cryptoKeys/k"
HERE, ELSEWHERE, GLOBAL = RING.format("europe-west1"), RING.format("europe-west4"), RING.format("global")
PLACE = "projects/p-12345/locations/europe-west1"
PRESSED = {"instancesFormat": "jsonl", "gcsSource": {"uris": ["gs://rows/in"]}}
OUT = {"predictionsFormat": "jsonl", "gcsDestination": {"outputUriPrefix": "gs://rows/out"}}
GEMINI = "publishers/google/models/gemini-2.5-flash"


def spec(key: str) -> dict[str, Any]:
    return {"encryptionSpec": {"kmsKeyName": key}}


REQUESTS: dict[str, Any] = {
    "an object": lambda key: (f"/upload/storage/v1/b/near/o?uploadType=media&name=x&kmsKeyName={key}", None),
    "an endpoint": lambda key: (f"/v1/{PLACE}/endpoints?endpointId=e1", {"displayName": "e", **spec(key)}),
    "a model": lambda key: (
        f"/v1/{PLACE}/models:upload",
        {"model": {"displayName": "m", "containerSpec": {"imageUri": "vllm", "args": ["--model=m"]}, **spec(key)}},
    ),
    "a batch": lambda key: (
        f"/v1/{PLACE}/batchPredictionJobs",
        {"displayName": "b", "model": GEMINI, "inputConfig": PRESSED, "outputConfig": OUT, **spec(key)},
    ),
    "a cache": lambda key: (
        f"/v1/{PLACE}/cachedContents",
        {
            "model": f"{PLACE}/{GEMINI}",
            "contents": [{"role": "user", "parts": [{"text": "word " * 4_000}]}],
            **spec(key),
        },
    ),
    "a service": lambda key: (
        f"/v2/{PLACE}/services?serviceId=s1",
        {"template": {"containers": [{"image": "vllm", "args": ["--model=m"]}], "encryptionKey": key}},
    ),
    "a Dataflow job": lambda key: (
        f"/v1b3/{PLACE}/jobs",
        {
            "name": "job-1",
            "environment": {
                "serviceKmsKeyName": key,
                "sdkPipelineOptions": {"options": {"pipelineUrl": "gs://rows/pipeline.pb"}},
            },
        },
    ),
}


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with (
        Sandbox(buckets=("rows",)) as sandbox,
        httpx.Client(base_url=sandbox.url, headers=authorized(sandbox), timeout=60) as client,
    ):
        client.post("/storage/v1/b?project=p", json={"name": "near", "location": "EUROPE-WEST1"})
        yield client


def send(http: httpx.Client, path: str, body: Any) -> httpx.Response:
    return http.post(path, content=b"x") if body is None else http.post(path, json=body)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_malformed_key_and_one_in_another_location_are_refused(http: httpx.Client, name: str) -> None:
    for key in ("my-key", f"{HERE}/cryptoKeyVersions/1", ELSEWHERE, GLOBAL):
        reply = send(http, *REQUESTS[name](key))
        assert (reply.status_code, "Cloud KMS key" in reply.text) == (400, True), (key, reply.text)
    reply = send(http, *REQUESTS[name](HERE))
    assert reply.status_code == 200, reply.text


def test_an_object_has_its_own_key_or_the_default_one_of_the_bucket(http: httpx.Client) -> None:
    upload = "/upload/storage/v1/b/near/o?uploadType=media&name="
    assert "kmsKeyName" not in http.post(f"{upload}a", content=b"x").json()
    default, own = HERE.replace("cryptoKeys/k", "cryptoKeys/default"), {"kmsKeyName": HERE}
    http.patch("/storage/v1/b/near", json={"encryption": {"defaultKmsKeyName": default}})
    assert http.post(f"{upload}b", content=b"x").json()["kmsKeyName"] == f"{default}/cryptoKeyVersions/1"
    assert http.post(f"{upload}c&kmsKeyName={HERE}", content=b"x").json()["kmsKeyName"].startswith(f"{HERE}/")
    copied = http.post("/storage/v1/b/near/o/a/copyTo/b/near/o/d", params={"destinationKmsKeyName": HERE}, json={})
    assert copied.json()["kmsKeyName"].startswith(f"{HERE}/")
    composed = http.post("/storage/v1/b/near/o/e/compose", params=own, json={"sourceObjects": [{"name": "a"}]})
    assert composed.json()["kmsKeyName"].startswith(f"{HERE}/")
    refused = http.patch("/storage/v1/b/near", json={"encryption": {"defaultKmsKeyName": ELSEWHERE}})
    assert refused.status_code == 400


def test_the_metadata_of_an_object_may_not_have_a_key(http: httpx.Client) -> None:
    parts = (f'Content-Type: application/json\r\n\r\n{{"name": "x", "kmsKeyName": "{HERE}"}}', "\r\n\r\nx")
    body = "".join(f"--cut\r\n{part}\r\n" for part in parts) + "--cut--"
    headers = {"Content-Type": "multipart/related; boundary=cut"}
    reply = http.post("/upload/storage/v1/b/near/o?uploadType=multipart", content=body, headers=headers)
    assert (reply.status_code, "kmsKeyName" in reply.text) == (400, True), reply.text


def test_the_developer_api_has_no_field_for_a_key(http: httpx.Client) -> None:
    body = {"model": "models/gemini-2.5-flash", "contents": [], **spec(HERE)}
    reply = http.post("/v1beta/cachedContents", json=body, headers={"x-goog-api-key": "k"})
    assert (reply.status_code, "Cannot find field" in reply.text) == (400, True)


def test_tables_and_results_of_bigquery_keep_the_key(http: httpx.Client) -> None:
    root, key = "/bigquery/v2/projects/p", {"kmsKeyName": HERE}
    http.post(f"{root}/datasets", json={"datasetReference": {"datasetId": "d"}})
    table = {"tableReference": {"datasetId": "d", "tableId": "t"}, "encryptionConfiguration": key}
    assert http.post(f"{root}/datasets/d/tables", json=table).json()["encryptionConfiguration"] == key
    query = {"query": "SELECT 1 AS one", "useLegacySql": False, "destinationEncryptionConfiguration": key}
    job = http.post(f"{root}/jobs", json={"configuration": {"query": query}}).json()
    assert job["configuration"]["query"]["destinationEncryptionConfiguration"] == key
    result = job["configuration"]["query"]["destinationTable"]
    found = http.get(f"{root}/datasets/{result['datasetId']}/tables/{result['tableId']}").json()
    assert found["encryptionConfiguration"] == key
    wrong = {**query, "destinationEncryptionConfiguration": {"kmsKeyName": "my-key"}}
    assert http.post(f"{root}/jobs", json={"configuration": {"query": wrong}}).status_code == 400
