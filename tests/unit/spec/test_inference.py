from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_llmbeam.spec import Inference, JobSpec

VERTEX = {"type": "gemini", "project": "p"}
JOB = {
    "name": "night",
    "source": {"uri": "gs://b/in.jsonl", "key": ["id"]},
    "prompt": {"template": "{{ row.text }}"},
    "model": VERTEX,
    "sink": {"uri": "gs://b/out/"},
    "inference": {"mode": "batch"},
}
DATAFLOW = {"type": "dataflow", "project": "my-project", "location": "europe-west1"}


def problem(**changes):
    (found,) = JobSpec.problems(JOB | changes)
    return found


@pytest.mark.parametrize(
    "model",
    [
        VERTEX,
        {"type": "gemini"},
        "gemini-2.5-pro",
        {"type": "openai", "name": "gpt-5-mini"},
        {"type": "openai", "name": "gemma", "base_url": "http://vllm:8000/v1"},
    ],
)
@pytest.mark.parametrize("inference", [{"mode": "batch"}, {"mode": "auto", "finish_by": "PT6H"}])
def test_models_of_google_and_openai_and_of_its_api_have_batch_inference(model, inference):
    assert JobSpec.parse(JOB | {"model": model, "inference": inference}).inference.mode == inference["mode"]


@pytest.mark.parametrize(
    "model",
    [
        {"type": "echo"},
        {"type": "vertex_endpoint", "name": "g", "endpoint": "projects/p/locations/l/endpoints/1"},
    ],
)
def test_other_models_have_none(model):
    found = problem(model=model)
    assert (found.field, found.got) == ("inference.mode", "batch")
    assert "which has no batch inference here" in found.want


@pytest.mark.parametrize(
    ("changes", "field", "reason"),
    [
        (
            {"task": "embed", "model": {**VERTEX, "name": "gemini-embedding-001"}},
            "inference.mode",
            "for Vertex AI",
        ),
        ({"task": "embed", "model": {**VERTEX, "name": "text-embedding-005"}}, "inference.mode", "for Vertex AI"),
        (
            {"prompt": {"template": "?", "media": [{"uri": "gs://b/{{ row.id }}.png"}]}},
            "inference.mode",
            "`prompt.media`",
        ),
        ({"runner": DATAFLOW}, "inference.mode", "runner of type 'dataflow'"),
        ({"sink": {"uri": "/out"}}, "state_uri", "Vertex AI reads request files from Cloud Storage alone"),
        ({"inference": {"mode": "auto"}}, "inference.finish_by", "needed with mode 'auto'"),
    ],
)
def test_what_batch_inference_cannot_do_is_refused(changes, field, reason):
    found = problem(**changes)
    assert found.field == field
    assert reason in found.want


@pytest.mark.parametrize(
    "model",
    [
        {"type": "gemini", "name": "gemini-embedding-001"},
        {"type": "openai", "name": "text-embedding-3-small"},
    ],
)
@pytest.mark.parametrize("inference", [{"mode": "batch"}, {"mode": "auto", "finish_by": "PT6H"}])
def test_embeddings_of_the_developer_api_and_of_openai_have_batch_inference(model, inference):
    spec = JobSpec.parse(JOB | {"task": "embed", "model": model, "inference": inference})
    assert spec.inference.mode == inference["mode"]


def test_without_batch_inference_none_of_these_rules_holds():
    assert JobSpec.parse(JOB | {"inference": {}, "runner": DATAFLOW, "model": VERTEX}).inference.mode == "online"


def test_the_developer_api_takes_files_of_this_machine():
    JobSpec.parse(JOB | {"model": {"type": "gemini"}, "sink": {"uri": "/out"}})


@pytest.mark.parametrize(
    ("given", "finish_by"),
    [
        ("PT6H", timedelta(hours=6)),
        (timedelta(minutes=5), timedelta(minutes=5)),
        ("2026-11-25 06:00:00+00:00", datetime(2026, 11, 25, 6, tzinfo=UTC)),
        ("2026-11-25T07:00:00+01:00", datetime(2026, 11, 25, 6, tzinfo=UTC)),
        ("deadline", "deadline"),
    ],
)
def test_the_time_is_a_moment_or_a_duration_or_the_deadline_of_a_dag(given, finish_by):
    assert Inference(finish_by=given).finish_by == finish_by


@pytest.mark.parametrize("given", [3600, 1e9, "28800", " 0.5", "1e9"])
def test_a_number_is_neither_a_time_nor_a_duration_also_as_the_text_that_airflow_renders_it_to(given):
    (found,) = Inference.problems({"finish_by": given})
    assert (found.field, found.got) == ("finish_by", given)
    assert "e.g. 'PT6H'" in found.want


@pytest.mark.parametrize("given", ["06:00", "6:00:00", " 22:30 ", "06:00:00.5"])
def test_a_time_of_day_is_not_taken_for_a_duration(given):
    (found,) = Inference.problems({"finish_by": given})
    assert (found.field, found.got) == ("finish_by", given)
    assert found.want.endswith("or 'deadline': a time of day needs its zone")


@pytest.mark.parametrize("given", ["2026-11-25 06:00:00", "tonight", "PT0S", timedelta(hours=-1)])
def test_a_time_without_a_zone_and_a_duration_of_nothing_are_refused(given):
    (found,) = Inference.problems({"finish_by": given})
    assert found.field == "finish_by"
    assert "a date and time with its zone, a duration above zero, e.g. 'PT6H', or 'deadline'" in found.want


@pytest.mark.parametrize("mode", ["online", "auto"])
def test_a_job_without_an_operator_has_no_dag_with_a_deadline(mode):
    (found,) = JobSpec.problems(JOB | {"inference": {"mode": mode, "finish_by": "deadline"}})
    assert (found.field, found.got) == ("inference.finish_by", "deadline")
    assert "only an operator of Airflow knows the deadline of its Dag" in found.want


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_wait_of_nothing_is_refused(seconds):
    (found,) = Inference.problems({"max_batch_wait_seconds": seconds})
    assert found.field == "max_batch_wait_seconds"


FLEX = {"service_tier": "flex_then_standard"}


@pytest.mark.parametrize("tier", ["flex", "flex_then_standard"])
@pytest.mark.parametrize("model", [VERTEX, {"type": "gemini"}, {"type": "openai", "name": "gpt-5-mini"}])
def test_models_of_google_and_openai_have_the_flex_tier(model, tier):
    inference = {"service_tier": tier}
    assert JobSpec.parse(JOB | {"model": model, "inference": inference}).inference.service_tier == tier


@pytest.mark.parametrize(
    ("changes", "field", "reason"),
    [
        ({"model": {"type": "echo"}}, "inference.service_tier", "only Gemini and OpenAI itself"),
        (
            {"model": {"type": "openai", "name": "gemma", "base_url": "http://vllm:8000/v1"}},
            "inference.service_tier",
            "only Gemini and OpenAI itself",
        ),
        (
            {"task": "embed", "model": {**VERTEX, "name": "gemini-embedding-001"}},
            "inference.service_tier",
            "only for texts",
        ),
        ({"model": {**VERTEX, "location": "us-central1"}}, "inference.service_tier", "'us-central1'"),
        ({"generation": {"stream": True}}, "inference.service_tier", "`generation.stream`"),
        (
            {"inference": {"service_tier": "flex", "finish_by": "PT6H"}},
            "inference.service_tier",
            "must be 'flex_then_standard' with `inference.finish_by`",
        ),
        ({"inference": {**FLEX, "finish_by": "PT6H"}, "runner": DATAFLOW}, "inference.finish_by", "'dataflow'"),
    ],
)
def test_a_flex_tier_that_cannot_work_is_refused(changes, field, reason):
    found = problem(**{"inference": FLEX} | changes)
    assert found.field == field
    assert reason in found.want


def test_a_dataflow_job_may_use_flex_without_a_deadline():
    assert (
        JobSpec.parse(JOB | {"inference": FLEX, "runner": DATAFLOW}).inference.service_tier == FLEX["service_tier"]
    )


PRIORITY = {"service_tier": "priority"}
OWN_PRICE = {"input_usd_per_million_tokens": 0.3, "output_usd_per_million_tokens": 2.5}


@pytest.mark.parametrize("model", [VERTEX, {"type": "gemini"}, {"type": "openai", "name": "gpt-5-mini"}])
@pytest.mark.parametrize("changes", [{}, {"generation": {"stream": True}}])
def test_models_of_google_and_openai_have_the_priority_tier(model, changes):
    spec = JobSpec.parse(JOB | {"model": model, "inference": PRIORITY} | changes)
    assert spec.inference.service_tier == "priority"
    assert not spec.inference.needs_pilot


def test_a_dataflow_job_may_ask_for_priority_with_a_deadline():
    inference = {**PRIORITY, "finish_by": "PT6H"}
    assert JobSpec.parse(JOB | {"inference": inference, "runner": DATAFLOW}).inference.service_tier == "priority"


def test_priority_with_a_deadline_is_as_the_standard_tier():
    inference = Inference.parse({**PRIORITY, "finish_by": "PT6H"})
    assert not inference.needs_pilot
    assert inference.model_copy(update={"mode": "auto"}).needs_pilot


@pytest.mark.parametrize(
    ("changes", "field", "reason"),
    [
        ({"model": {"type": "echo"}}, "inference.service_tier", "only Gemini and OpenAI itself have the priority"),
        (
            {"model": {"type": "openai", "name": "gemma", "base_url": "http://vllm:8000/v1"}},
            "inference.service_tier",
            "only Gemini and OpenAI itself have the priority tier",
        ),
        (
            {"task": "embed", "model": {**VERTEX, "name": "gemini-embedding-001"}},
            "inference.service_tier",
            "only for texts",
        ),
        (
            {"model": {**VERTEX, "location": "us-central1"}},
            "inference.service_tier",
            "with `model.location` 'us-central1': Vertex AI has priority in 'global' alone",
        ),
        ({"limits": {"budget_usd": 5}}, "limits.price", "'priority_ratio': 1.8"),
        ({"limits": {"budget_usd": 5, "price": OWN_PRICE}}, "limits.price", "at service tier 'priority' is not"),
    ],
)
def test_a_priority_tier_that_cannot_work_is_refused(changes, field, reason):
    found = problem(**{"inference": PRIORITY} | changes)
    assert found.field == field
    assert reason in found.want


@pytest.mark.parametrize(
    "changes",
    [
        {"limits": {"budget_usd": 5, "price": {**OWN_PRICE, "priority_ratio": 1.8}}},
        {"limits": {"budget_usd": 5}, "model": {"type": "openai", "name": "gpt-5-mini"}},
        {"limits": {"budget_usd": 5}, "inference": {"service_tier": "standard"}},
    ],
)
def test_a_budget_needs_the_price_of_the_tier_that_is_asked_for(changes):
    assert JobSpec.parse(JOB | {"inference": PRIORITY} | changes).limits.budget_usd == 5


LABELS = {"team": "data"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": {"type": "gemini", "labels": LABELS}}, "without `model.project`: Vertex AI takes labels"),
        (
            {
                "model": {**VERTEX, "name": "gemini-embedding-001", "labels": LABELS},
                "task": "embed",
                "inference": {},
            },
            "to embed: Vertex AI takes labels with requests for texts alone",
        ),
    ],
)
def test_labels_that_no_request_can_have_are_refused(changes, reason):
    found = problem(**changes)
    assert found.field == "model.labels"
    assert reason in found.want


def test_labels_of_other_models_are_refused():
    model = {"type": "openai", "name": "gpt-5-mini", "labels": LABELS}
    assert problem(model=model).want.startswith("there is no such field")


def test_the_project_of_a_model_with_labels_may_be_that_of_a_connection():
    data = JOB | {"model": {"type": "gemini", "labels": LABELS}, "sink": {"uri": "gs://b/out/"}}
    assert JobSpec.problems(data, has_connection=True) == ()
