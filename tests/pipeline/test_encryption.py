"""What jobs make on an emulated Google Cloud carries the key of Cloud KMS of the job, and none without one."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from google.cloud import bigquery, storage
from llmbeam_sandbox import Proxy, Sandbox
from llmbeam_sandbox.batch_inference.state import Jobs as BatchJobs
from llmbeam_sandbox.bigquery.jobs import Jobs as BigQueryJobs
from llmbeam_sandbox.bigquery.state import Tables
from llmbeam_sandbox.models.cached_contents import CachedContents
from llmbeam_sandbox.storage.state import ObjectStore

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.spec import JobSpec
from tests.clouds import trust_in_aiohttp, use_environment
from tests.contract import plugin
from tests.pipeline.dataflow_cloud import dataflow_cloud

pytestmark = [
    pytest.mark.promise(5),
    pytest.mark.usefixtures("quick_batch_polls"),
    # Beam closes none of its clients of Cloud Storage.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
LOCATION = "europe-west1"
KEY = f"projects/keys/locations/{LOCATION}/keyRings/llmbeam/cryptoKeys/state"
OTHER = KEY.replace("state", "other")
ROWS = 120
MODEL = {"type": "gemini", "name": "gemini-2.5-flash", "project": "llmbeam-sandbox"}
ANSWERS = "llmbeam-sandbox.llm.answers"


@dataclass
class Made:
    """All that an emulated cloud was asked to make, also what is deleted by now."""

    found: list[tuple[str, str, Any]] = field(default_factory=list)

    def note(self, patched: pytest.MonkeyPatch, owner: type, method: str, read: Any) -> None:
        """Notes what a method of the emulator makes; `read` returns kind, name and a function of the key."""
        original = getattr(owner, method)

        def noting(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            self.found.append(read(made, args))
            return made

        patched.setattr(owner, method, noting)

    def keys(self) -> dict[str, Counter[str | None]]:
        """Returns the number of resources by kind and key."""
        counts: dict[str, Counter[str | None]] = {}
        for kind, _, key in self.found:
            counts.setdefault(kind, Counter())[key()] += 1
        return counts

    def without(self, key: str) -> list[str]:
        """Returns what has another key."""
        return [f"{kind} {name}: {found()}" for kind, name, found in self.found if found() != key]


def _key_of(fields: Any, name: str) -> str | None:
    return (fields.get(name) or {}).get("kmsKeyName")


_ENCRYPTION, _SPEC = "destinationEncryptionConfiguration", "encryptionSpec"


def _table(one: Any, _: Any) -> tuple[str, str, Any]:
    return "table", str(one.id), lambda: _key_of(one.fields, "encryptionConfiguration")


def _kind(job: Any) -> str:
    return job.statistics["statementType"] if job.kind == "query" else job.kind


@pytest.fixture
def made(monkeypatch) -> Made:
    noted = Made()
    notes: list[tuple[type, str, Any]] = [
        (ObjectStore, "put", lambda one, _: ("object", one.name, lambda: one.kms_key_name or None)),
        (Tables, "add", _table),
        (Tables, "_register", _table),
        (
            BigQueryJobs,
            "insert",
            lambda one, _: (_kind(one), one.id, lambda: _key_of(one.options, _ENCRYPTION)),
        ),
        (BatchJobs, "submit", lambda _, args: ("batch", args[1].name, lambda: _key_of(args[1].fields, _SPEC))),
        (CachedContents, "_create", lambda _, args: ("cache", "head", lambda: _key_of(args[1].fields(), _SPEC))),
    ]
    for owner, method, read in notes:
        noted.note(monkeypatch, owner, method, read)
    return noted


@pytest.fixture
def cloud(made, monkeypatch):
    """A cloud with a bucket in the region of the key, which has no default key, and a dataset with rows."""
    with Sandbox() as sandbox, Proxy(sandbox) as proxy:
        use_environment(monkeypatch, proxy.environment())
        trust_in_aiohttp(proxy, monkeypatch)
        lines = "".join(json.dumps({"id": number, "text": f"row {number}"}) + "\n" for number in range(ROWS))
        bucket = storage.Client().create_bucket("state", location=LOCATION)
        bucket.blob("in.jsonl").upload_from_string(lines)
        with bigquery.Client() as client:
            client.create_dataset("llm")
            client.load_table_from_json(
                [json.loads(line) for line in lines.splitlines()],
                "llmbeam-sandbox.llm.rows",
                job_config=bigquery.LoadJobConfig(autodetect=True),
            ).result()
        yield sandbox


def set_default_key(name: str = "state") -> None:
    bucket = storage.Client().get_bucket(name)
    bucket.default_kms_key_name = KEY
    bucket.patch()


def spec_of(**changes: Any) -> JobSpec:
    spec = {
        "name": "night",
        "source": {"uri": "gs://state/in.jsonl", "key": ["id"]},
        "prompt": {"template": "Say it: {{ row.text }}"},
        "model": {**MODEL, "location": LOCATION},
        "sink": {"uri": "gs://state/out"},
        "state_uri": "gs://state/runs/",
        "kms_key_name": KEY,
        **changes,
    }
    return JobSpec.parse({name: value for name, value in spec.items() if value is not None})


BIGQUERY: dict[str, Any] = {
    "source": {"type": "bigquery", "query": "SELECT id, text FROM `llmbeam-sandbox.llm.rows`", "key": ["id"]},
    "sink": {"type": "bigquery", "table": ANSWERS},
    "inference": {"mode": "batch"},
    "safety": {"audit": {"table": "llmbeam-sandbox.llm.audit"}},
    "limits": {"price": {"input_usd_per_million_tokens": 0.3, "output_usd_per_million_tokens": 2.5}},
}


def test_every_object_of_a_job_is_written_with_its_key_in_a_bucket_that_has_no_default_key(cloud, made):
    made.found.clear()
    run(spec_of())
    run(spec_of())  # replaces what the first has published, from the journal
    assert len(made.found) > 10
    assert not made.without(KEY)
    names = [blob.name for blob in storage.Client().list_blobs("state") if blob.name != "in.jsonl"]
    assert {"out/report.json", "out/answers-00000-of-00001.jsonl"} <= {*names}


def test_every_table_job_and_object_of_a_batch_from_bigquery_to_bigquery_has_the_key(cloud, made):
    set_default_key()
    made.found.clear()
    run(spec_of(**BIGQUERY))
    keys = made.keys()
    # Neither has a field for a key: a MERGE changes a table that has one, an extract writes to a bucket.
    assert keys.pop("MERGE") == keys.pop("extract") == {None: 1}
    assert keys.keys() == {"object", "table", "SELECT", "load", "batch"}
    assert all(counts.keys() == {KEY} for counts in keys.values()), made.without(KEY)
    with bigquery.Client() as client:
        assert client.get_table(ANSWERS).num_rows == ROWS


def test_the_same_jobs_without_the_field_send_no_key(cloud, made):
    made.found.clear()
    run(spec_of(kms_key_name=None))
    run(spec_of(kms_key_name=None, **BIGQUERY))
    assert {key for counts in made.keys().values() for key in counts} == {None}
    exchanges = list(plugin._waiting)
    assert len(exchanges) > 50
    assert not [one.path for one in exchanges if "kms" in f"{one.query}{one.request!r}".lower()]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"source": BIGQUERY["source"]}, id="the exports of BigQuery"),
        pytest.param({"inference": BIGQUERY["inference"]}, id="the results of batch inference"),
    ],
)
def test_a_bucket_to_which_a_service_writes_needs_the_key_as_its_default(cloud, made, request, changes):
    with pytest.raises(JobSpecError) as raised:
        run(spec_of(**changes))
    what = request.node.callspec.id
    assert f"`kms_key_name` {KEY!r}: {what} in 'gs://state' have the default key of the bucket" in str(
        raised.value
    )
    assert f"gcloud storage buckets update gs://state --default-encryption-key={KEY}" in str(raised.value)
    assert made.keys().get("batch") is None
    assert not [one for one in cloud.requests if one.method.startswith(("gemini.", "vertex."))]


@pytest.mark.parametrize(
    ("changes", "table"),
    [
        pytest.param({"sink": BIGQUERY["sink"]}, ANSWERS, id="the answers"),
        pytest.param({"safety": BIGQUERY["safety"]}, "llmbeam-sandbox.llm.audit", id="the audit"),
    ],
)
def test_a_table_that_exists_with_another_key_is_refused_before_anything_is_sent(cloud, changes, table):
    with bigquery.Client() as client:
        made = bigquery.Table(table, [bigquery.SchemaField("id", "INT64")])
        made.encryption_configuration = bigquery.EncryptionConfiguration(OTHER)
        client.create_table(made)
    with pytest.raises(JobSpecError, match=f"table '{table}' is encrypted with '{OTHER}'"):
        run(spec_of(**changes))
    assert not [one for one in cloud.requests if one.method.startswith("gemini.")]


@pytest.mark.parametrize(
    ("location", "keys"),
    [pytest.param(LOCATION, {KEY: 1}, id="its region"), pytest.param("global", None, id="global")],
)
def test_a_cached_beginning_is_stored_only_where_the_key_encrypts_it(cloud, made, location, keys):
    head = "You judge reviews. " * 2_000
    changes = {
        "model": {**MODEL, "location": location},
        "prompt": {"template": head + "{{ row.text }}"},
    }
    run(spec_of(**changes))
    assert made.keys().get("cache") == keys


@pytest.mark.full
@pytest.mark.slow
def test_a_job_on_dataflow_and_all_that_it_and_its_workers_write_has_the_key(made):
    with dataflow_cloud(20, latency_seconds=0) as cloud:
        set_default_key("rows")
        made.found.clear()
        job = cloud.wait(cloud.submit(cloud.spec("keyed", kms_key_name=KEY)))
    assert job["currentState"] == "JOB_STATE_DONE"
    assert job["environment"]["serviceKmsKeyName"] == KEY
    written = [name for kind, name, _ in made.found if kind == "object"]
    assert any("/journal" in name for name in written)
    assert any("/staging/" in name for name in written)
    assert not made.without(KEY)
