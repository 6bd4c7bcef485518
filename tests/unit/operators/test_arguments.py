"""Arguments of operators and sensors, as they are checked when a Dag is parsed."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from pydantic import BaseModel

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.operators.compare_inference import CompareInferenceOperator
from airflow_provider_llmbeam.operators.endpoint import ProvisionEndpointOperator, ReserveEndpointOperator
from airflow_provider_llmbeam.operators.estimate import EstimateInferenceOperator
from airflow_provider_llmbeam.operators.evaluate_inference import EvaluateInferenceOperator
from airflow_provider_llmbeam.operators.model_registry import (
    PromoteModelOperator,
    ResolveModelOperator,
    RollBackModelOperator,
)
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.operators.sweep import SweepEndpointsOperator
from airflow_provider_llmbeam.operators.sweep_batch_inference import SweepBatchInferenceOperator
from airflow_provider_llmbeam.sensors.endpoint import EndpointReadySensor
from airflow_provider_llmbeam.sensors.quota import QuotaHealthSensor
from airflow_provider_llmbeam.spec import JobSpec

#: A task that is not mapped.
TASK = SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=-1)
SIMPLE: dict[str, Any] = {
    "task_id": "judge",
    "source": {"uri": "in.csv", "key": "ticket_id"},
    "prompt": "Judge: {{ row.text }}",
    "model": "gemini-2.5-flash",
    "sink": "out/",
}


class Mood(BaseModel):
    mood: Literal["good", "bad"]


def refusal(operator: Any = RunInferenceOperator, **changes: Any) -> str:
    with pytest.raises(JobSpecError) as caught:
        operator(**(SIMPLE if operator is RunInferenceOperator else {"task_id": "judge"}), **changes)
    assert len(str(caught.value)) <= 240
    return str(caught.value)


@pytest.mark.parametrize(
    ("argument", "instead"),
    [
        ("output_schema", "it belongs in `prompt`."),
        ("temperature", "it belongs in `generation`."),
        ("max_output_tokens", "it belongs in `generation`."),
        ("requests_per_minute", "it belongs in `limits`."),
        ("budget_usd", "it belongs in `limits`."),
        ("key", "it belongs in `source` or `conversation` or `sink`."),
        ("llmbeam_con_id", "did you mean `llmbeam_conn_id`?"),
        ("sinks", "did you mean `sink`?"),
        ("retires", "did you mean `retries`?"),
    ],
)
def test_an_unknown_argument_is_refused_with_where_it_belongs(argument: str, instead: str) -> None:
    """Airflow's own error quotes the value, and says nothing of this."""
    assert refusal(**{argument: "topsecret"}) == (
        f"Task 'judge': `{argument}`: RunInferenceOperator has no such argument; {instead} "
        "Nothing was sent or billed."
    )


@pytest.mark.parametrize(
    ("operator", "argument", "instead"),
    [
        (SweepEndpointsOperator, "location", "did you mean `locations`?"),
        (SweepBatchInferenceOperator, "deployment", "did you mean `deployments`?"),
        (EndpointReadySensor, "max_latency", "did you mean `max_latency_seconds`?"),
        (QuotaHealthSensor, "poke_intervall", "did you mean `poke_interval`?"),
    ],
)
def test_other_operators_and_sensors_say_it_too(operator: Any, argument: str, instead: str) -> None:
    own = {"locations": ["l"]} if operator is SweepEndpointsOperator else {"model": "gemini-2.5-flash"}
    assert refusal(operator, **own, **{argument: 1}).endswith(
        f"{operator.__name__} has no such argument; {instead} Nothing was sent or billed."
    )


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"older_than_seconds": -1.0}, "`older_than_seconds` must be 0 or more; got -1.0."),
        ({"older_than_seconds": float("nan")}, "`older_than_seconds` must be 0 or more; got nan."),
        (
            {"model": "echo"},
            "`model`: must have batch inference; got 'echo' of type 'echo', which has none here.",
        ),
        ({"model": {"type": "gemini", "nam": "a"}}, "nam"),
        ({"deployments": "production"}, "`deployments` must be a list of names, each at most 40 of a-z"),
        ({"deployments": ["tests", ""]}, "beginning with a letter; got ['tests', '']."),
        ({"deployments": ["Tests"]}, "beginning with a letter; got ['Tests']."),
    ],
)
def test_an_invalid_sweep_of_batch_inference_is_refused_when_the_dag_is_parsed(
    changes: dict[str, Any], fault: str
) -> None:
    message = refusal(SweepBatchInferenceOperator, **{"model": "gemini-2.5-flash", **changes})
    assert message.startswith("Task 'judge': ")
    assert fault in message


def test_templates_of_a_sweep_are_not_judged_before_they_are_rendered() -> None:
    for model in ("{{ params.model }}", {"type": "openai", "name": "m", "base_url": "{{ params.url }}"}):
        SweepBatchInferenceOperator(task_id="sweep", model=model, deployments="{{ params.deployments }}")


@pytest.mark.parametrize(
    ("changes", "connection", "fault"),
    [
        ({"model": "echo"}, {}, "got 'echo' of type 'echo'"),
        (
            {"model": {"type": "openai", "name": "m"}},
            {},
            "OpenAI needs a key: found neither a password in the",
        ),
        ({}, {}, "The Gemini Developer API needs a key"),
        ({"deployments": "['a', 5]"}, {"password": "k"}, "`deployments` must be a list of names"),
    ],
)
def test_a_sweep_that_was_rendered_to_something_invalid_sends_nothing(
    changes: dict[str, Any], connection: dict[str, str], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AIRFLOW_CONN_LLMBEAM_DEFAULT", json.dumps({"conn_type": "llmbeam", **connection}))
    task = SweepBatchInferenceOperator(task_id="sweep", model="gemini-2.5-flash")
    for name, value in changes.items():
        setattr(task, name, value)
    with pytest.raises(JobSpecError, match=fault):
        task.sweep(logging.getLogger(__name__))


def test_an_airflow_without_a_name_sweeps_no_batch_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW__LLMBEAM__DEPLOYMENT")
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "")
    with pytest.raises(JobSpecError, match="this Airflow has no name of its own"):
        SweepBatchInferenceOperator(task_id="sweep", model="gemini-2.5-flash").sweep(logging.getLogger(__name__))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"deployments": "production"}, "`deployments` must be a list of names, each at most 40 of a-z"),
        ({"deployments": ["Tests"]}, "beginning with a letter; got ['Tests']."),
        ({"locations": "us-central1"}, "`locations` must be a list of regions, e.g. ['us-central1']; got 'us-c"),
        ({"locations": []}, "got []. Nothing was sent or billed."),
        ({"locations": ["us-central1", None]}, "got ['us-central1', None]. Nothing was sent or billed."),
    ],
)
def test_a_sweep_of_endpoints_without_a_list_is_refused_when_the_dag_is_parsed_and_after_templates_are_rendered(
    changes: dict[str, Any], fault: str
) -> None:
    message = refusal(SweepEndpointsOperator, **{"locations": ["us-central1"], **changes})
    assert message.startswith("Task 'judge': ")
    assert fault in message
    pending = {"locations": "{{ params.locations }}", "deployments": "{{ params.deployments }}"}
    task = SweepEndpointsOperator(task_id="sweep", **pending)
    for name, value in ({"locations": ["us-central1"], "deployments": None} | changes).items():
        setattr(task, name, value)
    with pytest.raises(AirflowFailException) as caught:
        task.execute({})  # type: ignore[arg-type]
    assert fault in str(caught.value)


def test_arguments_of_airflow_are_accepted() -> None:
    from datetime import timedelta

    from airflow.sdk import DAG

    with DAG("accepted", schedule=None, default_args={"retries": 3, "nonsense": 1}):
        made = RunInferenceOperator(
            **SIMPLE,
            execution_timeout=timedelta(1),
            params={"a": 1},
            on_failure_callback=print,
            doc_md="d",
            pool="p",
        )
        EstimateInferenceOperator(
            **{**SIMPLE, "task_id": "e"}, job_task_id="judge", sample_size=3, trigger_rule="all_done"
        )
        EndpointReadySensor(
            task_id="ready", model="gemini-2.5-flash", timeout=5, soft_fail=True, mode="reschedule"
        )
        ReserveEndpointOperator(task_id="reserve", retries=1)
        RunInferenceOperator.partial(
            task_id="mapped", prompt=SIMPLE["prompt"], model=SIMPLE["model"], retries=2
        ).expand(source=[SIMPLE["source"]], sink=["a", "b"])
    assert made.retries == 3


def test_the_simplest_task_is_a_valid_job() -> None:
    made = RunInferenceOperator(**SIMPLE)
    spec = JobSpec.parse(made._spec_data("job", made.inference))
    assert spec == JobSpec.parse(
        {
            "name": "job",
            "source": {"uri": "in.csv", "key": ["ticket_id"]},
            "prompt": {"template": "Judge: {{ row.text }}"},
            "model": {"type": "gemini", "name": "gemini-2.5-flash"},
            "sink": {"uri": "out/"},
        }
    )


def test_a_class_in_the_prompt_becomes_plain_data() -> None:
    made = RunInferenceOperator(**{**SIMPLE, "prompt": {"template": "{{ row.text }}", "output_schema": Mood}})
    assert made.prompt["output_schema"]["properties"]["mood"]["enum"] == ["good", "bad"]


@pytest.mark.parametrize("text", ['{"type": "echo"}', "{'type': 'echo', 'name': 'e'}", "gemini-2.5-pro"])
def test_a_model_that_airflow_rendered_as_text_is_read(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__LLMBEAM__DEPLOYMENT", "test")
    made = RunInferenceOperator(**{**SIMPLE, "model": "{{ ti.xcom_pull(task_ids='gate') }}"}, job_name="job")
    made.model, made.limits, made.sink = text, "{'max_in_flight': 3}", "out-{{ ds }}"
    spec, _ = made._job({"ti": TASK})
    assert spec.model.type in ("echo", "gemini")
    assert spec.limits.max_in_flight == 3


def test_an_argument_that_only_the_task_would_stumble_over_is_refused_when_the_dag_is_parsed() -> None:
    assert "`notifiers`: must be notifiers of Airflow" in refusal(notifiers="slack")
    assert "`notifiers`: must be notifiers of Airflow" in refusal(notifiers=["slack"])
    assert "`job_name`: must be a name of at most" in refusal(job_name="my job")
    evaluated = {**SIMPLE, "golden": {"uri": "g.csv", "key": "id"}}
    with pytest.raises(JobSpecError, match=r"`metrics`: must be an object with named fields; got \['exact'\]"):
        EvaluateInferenceOperator(**evaluated, metrics=["exact"])


def test_a_rendered_value_that_is_no_object_names_native_objects() -> None:
    made = RunInferenceOperator(**{**SIMPLE, "limits": "{{ ti.xcom_pull(task_ids='gate') }}"}, job_name="job")
    made.limits = "None"
    with pytest.raises(JobSpecError, match=r"pass `task\.output`, or set `render_template_as_native_obj=True`"):
        made._job({"ti": TASK})


@pytest.mark.parametrize(
    ("model", "connection", "expected"),
    [
        ({"type": "openai", "name": "m"}, None, "http://127.0.0.1:3/v1"),
        ({"type": "openai", "name": "m"}, "http://of-connection/v1", "http://of-connection/v1"),
        (
            {"type": "openai", "name": "m", "base_url": "http://of-spec/v1"},
            "http://of-connection/v1",
            "http://of-spec/v1",
        ),
        ("gemini-2.5-flash", None, "http://127.0.0.1:1"),
        ("gemini-2.5-flash", "http://of-connection", "http://of-connection"),
    ],
)
def test_spec_and_connection_take_precedence_over_the_environment(
    model: Any, connection: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:3/v1")
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AIRFLOW_CONN_LLMBEAM_DEFAULT", json.dumps({"conn_type": "llmbeam", "host": connection}))
    spec, _ = RunInferenceOperator(**{**SIMPLE, "model": model}, job_name="job")._job({"ti": TASK})
    assert getattr(spec.model, "base_url", None) == expected


def test_a_guard_a_judge_and_the_other_model_of_a_task_have_the_address_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process of a job reads specs with all their fields, in which no address is missing any more."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:3/v1")
    monkeypatch.setenv("AIRFLOW_CONN_LLMBEAM_DEFAULT", "llmbeam://")
    model = {"type": "openai", "name": "m"}
    seen: list[Any] = []

    class Process:
        page = None

        def __init__(self, spec: JobSpec, *_: Any, **others: Any) -> None:
            seen.extend(spec.models)

        def run_step(self, name: str, given: Any) -> dict[str, Any]:
            seen.extend(getattr(given, "models", ()))
            return {"passed": True, "rows": [], "requests": 0}

    monkeypatch.setattr("airflow_provider_llmbeam.operators.in_process.JobProcess", Process)
    monkeypatch.setattr("airflow_provider_llmbeam.operators.run_inference.JobProcess", Process)
    monkeypatch.setattr("airflow_provider_llmbeam.spec.protocol.preview.Preview.of", lambda found: found)
    arguments: dict[str, Any] = {**SIMPLE, "model": model, "safety": {"moderation": {"model": model}}}
    judge = {"model": model, "rubric": "{{ row.answer }} {{ row.first }} {{ row.second }}"}
    evaluate = EvaluateInferenceOperator(
        **arguments, golden={"uri": "g.csv", "key": "id"}, metrics={"good": {"type": "judge", **judge}}
    )
    compare = CompareInferenceOperator(**arguments, other={"model": model}, judge=judge)
    context: Any = {"ti": TASK}
    evaluate.execute(context)
    compare.execute(context)
    RunInferenceOperator(**arguments).preview()
    assert [found.base_url for found in seen] == ["http://127.0.0.1:3/v1"] * 9


# Registered models

REGISTERED = "projects/acme/locations/us-central1/models/support"
PROVISION: dict[str, Any] = {
    "name": "n",
    "endpoint": {
        "type": "vertex",
        "model": f"{REGISTERED}@champion",
        "machine_type": "g2-standard-12",
        "locations": ["us-central1"],
    },
}


@pytest.mark.parametrize(
    ("operator", "arguments", "fault"),
    [
        (ResolveModelOperator, {"model": "support@champion"}, "`model`: must be a registered model, 'projects/"),
        (PromoteModelOperator, {"model": f"{REGISTERED}@3", "alias": "7"}, "`alias`: must be 2 to 119 letters"),
        (
            PromoteModelOperator,
            {"model": f"{REGISTERED}@candidate", "alias": "eu"},
            "not the alias 'candidate', which can move",
        ),
        (RollBackModelOperator, {"model": REGISTERED, "alias": "eu"}, "not the alias 'default', which can move"),
        (RollBackModelOperator, {"model": REGISTERED, "alias": "eu", "error": ()}, "did you mean `errors`?"),
        (
            RollBackModelOperator,
            {"model": f"{REGISTERED}@3", "alias": "eu", "errors": ("DriftErorr",)},
            "`errors`: must name errors of docs/reference/exceptions.md, e.g. 'DriftError'; got 'DriftErorr'.",
        ),
        (ProvisionEndpointOperator, PROVISION, "@champion' has an alias, which can move between two tries: use"),
    ],
)
def test_an_invalid_registered_model_is_refused_when_the_dag_is_parsed(
    operator: Any, arguments: dict[str, Any], fault: str
) -> None:
    with pytest.raises(JobSpecError) as caught:
        operator(task_id="judge", **arguments)
    assert fault in str(caught.value)
    assert len(str(caught.value)) <= 240


def test_templates_of_a_registered_model_are_not_judged_before_they_are_rendered() -> None:
    model = "projects/{{ params.project }}/locations/us-central1/models/support@3"
    ResolveModelOperator(task_id="resolve", model=model)
    PromoteModelOperator(task_id="promote", model=model, alias="{{ params.alias }}")


def test_a_rollback_is_skipped_unless_a_task_before_it_failed_with_a_named_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = RollBackModelOperator(
        task_id="roll_back",
        model=f"{REGISTERED}@2",
        alias="champion",
        errors=("DriftError", "TooManyFailedRowsError"),
    )
    moved: list[str] = []
    monkeypatch.setattr(task, "_move", lambda move, decide: moved.append(move.__name__))

    def execute(*found: str | None) -> None:
        task.execute({"ti": SimpleNamespace(xcom_pull=lambda **_: list(found))})  # type: ignore[typeddict-item]

    for others in ((), (None,), ("BudgetExceededError", None)):
        with pytest.raises(AirflowSkipException, match="DriftError or TooManyFailedRowsError: nothing was moved"):
            execute(*others)
    assert moved == []
    execute(None, "DriftError")
    execute("NothingAnsweredError")  # a subclass of the second
    assert moved == ["roll_back", "roll_back"]
