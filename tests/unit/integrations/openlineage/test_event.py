"""What a task gives the OpenLineage provider, through the serialisation and the masker of that provider."""

from __future__ import annotations

import copy
import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files
from types import SimpleNamespace

import attrs
import pytest
from airflow.providers.openlineage.utils.utils import OpenLineageRedactor
from airflow.sdk._shared.secrets_masker import _secrets_masker
from openlineage.client.serde import Serde

from airflow_provider_llmbeam.integrations.openlineage.event import (
    LLMInferenceRunFacet,
    job_lineage,
    sink_columns,
    source_columns,
)
from airflow_provider_llmbeam.integrations.openlineage.task import HasLineage, JobFacts
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.sink import OUTPUT_COLUMNS

SECRET = "planted-password-of-the-sink"
TEMPLATE = "What is the mood of {{ row.text }}?"
MANIFEST = {
    "name": "night",
    "model": "gemini:gemini-3.5-flash-lite",
    "server": {"kind": "provider", "origin": ""},
    "rows": {"read": 5, "answered": 3, "dead_letter": 2},
    "dead_letter_by_kind": {"template_error": 2},
    "origins": {"fresh": 2, "repaired": 0, "resumed": 1},
    "service_tiers": {"flex": 2},
    "requests": {"sent": 4, "rejected": 1, "shed": 0, "retried": 1},
    "tokens": {"input": 100, "cached": 40, "output": 20},
    "cost_usd": 0.25,
    "truncated": 1,
    "started_at": 1.0,
    "finished_at": 3.5,
    "duration_seconds": 2.5,
    "skipped_because": None,
}


def spec(**changes):
    given = {
        "name": "night",
        "source": {"uri": "gs://b/in/*.csv", "key": ["id"]},
        "prompt": {"template": TEMPLATE, "system": "Be brief."},
        "model": {"type": "gemini", "project": "p"},
        "sink": {"type": "postgres", "table": "moods", "conn_id": "db"},
        "state_uri": "gs://b/state",
    }
    return JobSpec.parse(given | changes)


def sent(lineage):
    """Returns an event's parts as the provider sends them."""
    redactor = OpenLineageRedactor.from_masker(_secrets_masker())
    lineage = redactor.redact(copy.deepcopy(lineage), max_depth=20)
    return json.loads(Serde.to_json(lineage))


def facts(**changes):
    dsn = f"postgresql://writer:{SECRET}@db.example:5433/answers"
    return JobFacts(
        spec(), {"LLMBEAM_POSTGRES_DSN": dsn, "OTHER_DSN": "postgresql://other.example/vectors"}, **changes
    )


def test_a_finished_job_has_its_datasets_with_columns_and_rows():
    event = sent(job_lineage(facts(manifest=MANIFEST)))
    (source,), (answers, dead_letter) = event["inputs"], event["outputs"]
    assert (source["namespace"], source["name"]) == ("gs://b", "in")
    assert [field["name"] for field in source["facets"]["schema"]["fields"]] == ["id", "text"]
    assert source["inputFacets"]["inputStatistics"]["rowCount"] == 5
    assert (answers["namespace"], answers["name"]) == ("postgres://db.example:5433", "answers.public.moods")
    assert answers["facets"]["schema"]["fields"][1]["name"] == "answer"
    assert answers["outputFacets"]["outputStatistics"]["rowCount"] == 3
    lineage = answers["facets"]["columnLineage"]["fields"]
    assert {name: [given["field"] for given in found["inputFields"]] for name, found in lineage.items()} == {
        "id": ["id"],
        "answer": ["text"],
    }
    assert dead_letter["name"] == "state/night/dead_letter-00000-of-00001.jsonl"
    assert dead_letter["outputFacets"]["outputStatistics"]["rowCount"] == 2


def test_the_facet_of_the_run_has_the_numbers_and_no_text_of_the_prompt():
    event = sent(job_lineage(facts(manifest=MANIFEST)))
    ((name, facet),) = event["run_facets"].items()
    assert name == "llmbeam_inference"
    assert facet["promptSha256"] == hashlib.sha256(TEMPLATE.encode()).hexdigest()
    assert (facet["modelType"], facet["modelName"]) == ("gemini", "gemini-3.5-flash-lite")
    assert facet["journalUri"] == "gs://b/state/night/journal/"
    assert {name: facet[name] for name in ("inputTokens", "cachedInputTokens", "outputTokens")} == {
        "inputTokens": 100,
        "cachedInputTokens": 40,
        "outputTokens": 20,
    }, "the masker of Airflow takes a name with 'token' for a secret"
    assert facet["costUsd"] == 0.25
    assert facet["rowsFailed"] == 2
    assert facet["failedByKind"] == {"template_error": 2}
    assert facet["origins"] == {"fresh": 2, "resumed": 1}
    assert facet["serviceTiers"] == {"flex": 2}
    text = json.dumps(event)
    assert SECRET not in text
    assert "mood of" not in text
    assert "Be brief" not in text


def test_a_failed_job_has_what_was_asked_and_no_numbers():
    event = sent(job_lineage(facts()))
    assert "rowsRead" not in event["run_facets"]["llmbeam_inference"]
    assert "inputStatistics" not in event["inputs"][0]["inputFacets"]
    assert [output["outputFacets"] for output in event["outputs"]] == [{}, {}]


def test_a_skipped_job_and_an_estimate_have_no_outputs():
    skipped = job_lineage(facts(manifest=MANIFEST | {"skipped_because": "The source has no rows."}))
    assert skipped.outputs == []
    assert sent(skipped)["run_facets"]["llmbeam_inference"]["skippedBecause"] == "The source has no rows."
    assert job_lineage(facts(writes=False)).outputs == []


def test_rows_of_the_spec_are_no_dataset_and_the_tables_of_a_query_are():
    rows = {"type": "rows", "rows": [{"id": 1, "text": "planted text of a row"}], "key": "id"}
    event = sent(job_lineage(JobFacts(spec(source=rows), manifest=MANIFEST)))
    assert event["inputs"] == []
    assert "planted text" not in json.dumps(event)
    query = {"type": "bigquery", "query": "SELECT id, text FROM p.d.t WHERE x = 'planted'", "key": "id"}
    event = sent(job_lineage(JobFacts(spec(source=query), manifest=MANIFEST)))
    assert [(found["namespace"], found["name"]) for found in event["inputs"]] == [("bigquery", "p.d.t")]
    assert "planted" not in json.dumps(event)


def test_the_tables_of_a_query_have_the_names_of_their_database(add_connection):
    add_connection("warehouse", "postgres", f"postgresql://reader:{SECRET}@db.example:5433/shop")
    query = "SELECT t.id, t.text FROM tickets t JOIN sales.orders o USING (id) WHERE o.state = 'planted'"
    source = {"type": "sql", "conn_id": "warehouse", "query": query, "key": "id"}
    event = sent(job_lineage(JobFacts(spec(source=source), manifest=MANIFEST)))
    assert [(found["namespace"], found["name"]) for found in event["inputs"]] == [
        ("postgres://db.example:5433", "shop.public.tickets"),
        ("postgres://db.example:5433", "shop.sales.orders"),
    ]
    assert "planted" not in json.dumps(event)


def test_a_stream_has_each_of_its_sinks_with_its_columns():
    given = {"details": False, "passthrough": ["kafka_key"]}
    embed = {"model": {"type": "gemini", "project": "p", "name": "gemini-embedding-001"}}
    sinks = [
        {"type": "milvus", "uri": "http://m", "collection": "c", "embed": embed, **given},
        {"type": "postgres", "table": "vectors", "dsn_env": "OTHER_DSN", "embed": embed, **given},
    ]
    source = {"type": "kafka", "topic": "q", "bootstrap_servers": "k"}
    sink = {"type": "kafka", "topic": "a", "bootstrap_servers": "k", **given}
    job = spec(source=source, sink=sink, sinks=sinks)
    event = sent(job_lineage(replace(facts(), spec=job)))
    assert [(each["namespace"], each["name"]) for each in event["outputs"][:-1]] == [
        ("kafka://k:9092", "a"),
        ("milvus://m:19530", "c"),
        ("postgres://other.example:5432", "vectors.public.vectors"),
    ]
    fields = [output["facets"]["schema"]["fields"] for output in event["outputs"][:-1]]
    assert [each[-1]["name"] for each in fields] == ["answer", "vector", "answer"]


def test_without_its_connection_a_query_has_no_tables_and_the_answers_are_still_named():
    source = {"type": "sql", "conn_id": "nowhere", "query": "SELECT id FROM t", "key": "id"}
    event = sent(job_lineage(JobFacts(spec(source=source), manifest=MANIFEST)))
    assert event["inputs"] == []
    assert event["outputs"]


def test_an_error_leaves_the_task_without_lineage():
    class Broken(HasLineage):
        def _job_facts(self, task_instance):
            raise ValueError(SECRET)

    assert Broken().get_openlineage_facets_on_complete(SimpleNamespace()) is None
    assert Broken().get_openlineage_facets_on_failure(SimpleNamespace()) is None


@pytest.mark.full
def test_without_the_openlineage_provider_there_is_no_lineage_and_no_error():
    code = (
        "import sys\n"
        "import airflow.sdk\n"
        "sys.modules['openlineage'] = sys.modules['airflow.providers.openlineage.extractors'] = None\n"
        "from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator\n"
        "task = RunInferenceOperator(task_id='t', source={'uri': 'a.csv', 'key': 'id'}, prompt='{{ row.t }}',\n"
        "    model='echo', sink='out', job_name='j')\n"
        "print(task.get_openlineage_facets_on_complete(None))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "None"


def test_the_facet_names_its_schema_in_the_wheel():
    facet = LLMInferenceRunFacet
    address, _, pointer = facet._get_schema().partition("#")
    assert address.startswith("urn:airflow-provider-llmbeam:")
    schemas = json.loads(
        (files("airflow_provider_llmbeam") / "integrations" / "openlineage" / "schemas.json").read_text()
    )
    assert pointer == "/$defs/LLMInferenceRunFacet"
    own = schemas["$defs"]["LLMInferenceRunFacet"]["allOf"][1]
    fields = [field for field in attrs.fields(facet) if not field.name.startswith("_")]
    assert set(own["properties"]) == {field.name for field in fields}
    assert set(own["required"]) == {field.name for field in fields if field.default is attrs.NOTHING}


def columns_of(**changes):
    given = {
        "name": "j",
        "source": {"uri": "/in.csv", "key": ["id"]},
        "prompt": "{{ row.text }} {{ row['more'] }} {% if row.keys() %}{% endif %} {{ row.text }}",
        "model": {"type": "echo"},
        "sink": "/out",
        "state_uri": "/state",
    }
    found = JobSpec.parse(given | changes)
    return source_columns(found), sink_columns(found)


def test_the_source_has_the_columns_of_key_passthrough_and_prompt():
    assert columns_of(sink={"uri": "/out", "passthrough": ["day"]})[0] == ("id", "day", "text", "more")


def test_columns_of_system_and_media_count_as_well():
    prompt = {"template": "{{ row.a }}", "system": "{{ row.b }}", "media": [{"uri": "gs://b/{{ row.c }}.png"}]}
    assert columns_of(prompt=prompt, model={"type": "gemini", "project": "p"})[0] == ("id", "a", "b", "c")


@pytest.mark.parametrize(
    ("form", "answer"), [("struct", ("answer",)), ("json", ("answer",)), ("flat", ("mood", "score"))]
)
def test_an_answer_with_a_schema_has_the_columns_of_its_form(form, answer):
    schema = {"type": "object", "properties": {"mood": {"type": "string"}, "score": {"type": "number"}}}
    prompt, sink = {"template": "{{ row.text }}", "output_schema": schema}, {"uri": "/out", "answer_columns": form}
    _, columns = columns_of(prompt=prompt, sink=sink)
    assert columns[: 1 + len(answer)] == ("id", *answer)
    assert columns[1 + len(answer) :] == OUTPUT_COLUMNS[1:]


def test_vectors_have_a_column_and_milvus_has_columns_of_its_own():
    embeds = {"task": "embed", "model": {"type": "gemini", "project": "p", "name": "gemini-embedding-001"}}
    assert columns_of(**embeds)[1][1] == "answer"
    milvus = {"type": "milvus", "uri": "http://m", "collection": "c"}
    assert columns_of(**embeds, sink=milvus)[1] == (
        "llmbeam_id",
        "id",
        "vector",
        "llmbeam_model",
        "llmbeam_fingerprint",
    )
