"""A spec from outside calls, starts, reads and sends what is configured, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.allowed import OPTIONS, check_allowed, read_options, variable_of
from airflow_provider_llmbeam.spec.endpoint.cloud_run import CloudRunEndpoint
from airflow_provider_llmbeam.spec.endpoint.vertex_ai import VertexEndpoint
from airflow_provider_llmbeam.spec.evaluation import Comparison, Evaluation
from airflow_provider_llmbeam.spec.fields.names import Function, Program, Variable
from airflow_provider_llmbeam.spec.model import parse_model
from airflow_provider_llmbeam.spec.safety import Privacy

NOTHING = read_options(lambda _: "")
#: Services that the attacks do not name.
OTHERS = NOTHING | {"allowed_programs": ("jobs:8099",)}
ENDPOINT = {"model": "Qwen/Qwen3-4B", "locations": ("us-central1",)}
DATAFLOW = {"type": "dataflow", "project": "my-project", "location": "europe-west4"}
PORTABLE = {
    "type": "portable",
    "job_endpoint": "jobs:8099",
    "environment": {"type": "EXTERNAL", "address": "localhost:50000"},
}
FLINK = {
    "type": "flink",
    "rest_url": "http://flink:8081",
    "flink_version": "1.20",
    "job_endpoint": "jobs:8099",
    "environment": {"type": "EXTERNAL", "address": "localhost:50000"},
}
OPENAI = {"type": "openai", "name": "m", "base_url": "https://attacker.example/v1"}
SECRET = "projects/p/secrets/s/versions/1"
GOLDEN = {"uri": "g.csv", "key": "id"}


def job(**parts: Any) -> dict[str, Any]:
    return {
        "name": "j",
        "source": {"uri": "gs://b/in.jsonl", "key": ["id"]},
        "prompt": "{{ row.t }}",
        "model": "echo",
        "sink": "gs://b/out",
        "state_uri": "gs://b/state",
    } | parts


def detector(path: str) -> dict[str, Any]:
    return {"privacy": {"detectors": ["patterns", {"type": "custom", "name": "X", "function": path}]}}


#: What a stranger writes into each field by which a spec gets something done, with the option that allows it.
ATTACKS: dict[str, tuple[type, dict[str, Any], str, str]] = {
    "detector": (JobSpec, job(safety=detector("os:system")), "os:system", "allowed_functions"),
    "metric": (
        Evaluation,
        {"golden": GOLDEN, "metrics": {"m": {"type": "python", "function": "os:system"}}},
        "os:system",
        "allowed_functions",
    ),
    "prism": (
        JobSpec,
        job(runner={"type": "prism", "binary_path": "/tmp/evil"}),
        "/tmp/evil",
        "allowed_programs",
    ),
    "jar": (
        JobSpec,
        job(runner=FLINK | {"job_endpoint": None, "job_server_jar": "/tmp/evil.jar"}),
        "/tmp/evil.jar",
        "allowed_programs",
    ),
    "boot program": (
        JobSpec,
        job(runner=FLINK | {"environment": {"type": "PROCESS", "command": "/tmp/evil"}}),
        "/tmp/evil",
        "allowed_programs",
    ),
    "image": (
        JobSpec,
        job(runner=FLINK | {"environment": {"type": "DOCKER", "image": "evil:1"}}),
        "evil:1",
        "allowed_programs",
    ),
    "job service": (
        JobSpec,
        job(runner=PORTABLE | {"job_endpoint": "evil:8099"}),
        "evil:8099",
        "allowed_programs",
    ),
    "job service of Flink": (
        JobSpec,
        job(runner=FLINK | {"job_endpoint": "evil:8099"}),
        "evil:8099",
        "allowed_programs",
    ),
    # It asks the process that submits the job for any file by its path (Beam 2.77, `ArtifactRetrievalService`).
    "artifact service": (
        JobSpec,
        job(runner=PORTABLE | {"artifact_endpoint": "evil:8098"}),
        "evil:8098",
        "allowed_programs",
    ),
    "server on Vertex AI": (
        VertexEndpoint,
        ENDPOINT | {"type": "vertex", "machine_type": "g2-standard-12", "container_image": "evil:1"},
        "evil:1",
        "allowed_programs",
    ),
    "server on Cloud Run": (
        CloudRunEndpoint,
        ENDPOINT | {"type": "cloud_run", "image": "evil:1"},
        "evil:1",
        "allowed_programs",
    ),
    "workers": (JobSpec, job(runner=DATAFLOW | {"container_image": "evil:1"}), "evil:1", "allowed_programs"),
    "template": (
        JobSpec,
        job(runner=DATAFLOW | {"flex_template": "gs://evil/t.json"}),
        "gs://evil/t.json",
        "allowed_programs",
    ),
    "option": (
        JobSpec,
        job(runner=DATAFLOW | {"options": {"setup_f": "/tmp/setup.py", "disk_size_gb": 50}}),
        "/tmp/setup.py",
        "allowed_programs",
    ),
    "option of Flink": (
        JobSpec,
        job(runner=FLINK | {"options": {"files_to_stage": ["/etc/passwd"]}}),
        "/etc/passwd",
        "allowed_programs",
    ),
    "key": (JobSpec, job(model=OPENAI | {"api_key_env": "AIRFLOW_CONN_DB"}), "AIRFLOW_CONN_DB", "job_environment"),
    "guard's key": (
        JobSpec,
        job(safety={"moderation": {"model": OPENAI | {"api_key_env": "OTHER"}}}),
        "OTHER",
        "job_environment",
    ),
    "judge's key": (
        Evaluation,
        {
            "golden": GOLDEN,
            "metrics": {
                "m": {"type": "judge", "rubric": "{{ row.answer }}", "model": OPENAI | {"api_key_env": "OTHER"}}
            },
        },
        "OTHER",
        "job_environment",
    ),
    "other's key": (
        Comparison,
        {"other": {"model": OPENAI | {"api_key_env": "OTHER"}}},
        "OTHER",
        "job_environment",
    ),
    "dsn": (
        JobSpec,
        job(sink={"type": "postgres", "table": "t", "dsn_env": "OTHER"}),
        "OTHER",
        "job_environment",
    ),
    "token": (
        JobSpec,
        job(
            embedding={},
            task="embed",
            sink={"type": "milvus", "collection": "c", "uri": "https://evil", "token_env": "OTHER"},
        ),
        "OTHER",
        "job_environment",
    ),
    "settings of a source": (
        JobSpec,
        job(source={"type": "kafka", "topic": "t", "bootstrap_servers": "evil:9092", "config_env": "OTHER"}),
        "OTHER",
        "job_environment",
    ),
    "settings of a sink": (
        JobSpec,
        job(sink={"type": "kafka", "topic": "t", "bootstrap_servers": "evil:9092", "config_env": "OTHER"}),
        "OTHER",
        "job_environment",
    ),
    "placeholders": (JobSpec, job(safety={"privacy": {"key_env": "OTHER"}}), "OTHER", "job_environment"),
    "secret": (
        JobSpec,
        job(runner=DATAFLOW | {"environment_secrets": {"LD_PRELOAD": SECRET}}),
        "LD_PRELOAD",
        "job_environment",
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_comes_from_outside_needs_the_list(attack: str) -> None:
    kind, data, text, option = ATTACKS[attack]
    value = kind.parse(data)  # type: ignore[attr-defined]
    with pytest.raises(
        JobSpecError, match=rf"{text!r} is named neither .*`\[llmbeam\] {option}`.*{variable_of(option)}"
    ):
        check_allowed(value, OTHERS)
    check_allowed(value, OTHERS | {option: ("jobs:8099", text)})


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_the_dag_file_has_in_the_same_place_is_allowed(attack: str) -> None:
    kind, data, _, _ = ATTACKS[attack]
    value = kind.parse(data)  # type: ignore[attr-defined]
    check_allowed(value, NOTHING, data)
    check_allowed(value, NOTHING, [None, data])


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_text_that_the_dag_file_has_in_another_place_is_not(attack: str) -> None:
    kind, spec, text, _ = ATTACKS[attack]
    value = kind.parse(spec)  # type: ignore[attr-defined]
    others: list[Any] = [text, [text], {text: text}]
    for name in ("prompt_variables", "model", "sink", "source", "safety", "runner", "metrics", "other"):
        others += [{name: inner} for inner in (text, [text], {"x": text}, {"name": text}, {"uri": {"x": text}})]
    for written in others:
        with pytest.raises(JobSpecError, match="is named neither"):
            check_allowed(value, OTHERS, written)


@pytest.mark.parametrize(
    "parts",
    [
        {"model": OPENAI},
        {"model": OPENAI | {"api_key_env": "OPENAI_API_KEY"}},
        {"sink": {"type": "postgres", "table": "t", "dsn_env": "LLMBEAM_POSTGRES_DSN"}},
        {"safety": {"privacy": {}}},
        {"runner": DATAFLOW | {"options": {"disk_size_gb": 50, "save_main_session": True}}},
        {"model": "gemini-2.5-flash", "runner": DATAFLOW | {"environment_secrets": {"GOOGLE_API_KEY": SECRET}}},
    ],
)
def test_defaults_are_allowed(parts: dict[str, Any]) -> None:
    check_allowed(JobSpec.parse(job(**parts)), NOTHING)
    check_allowed(JobSpec.from_json(JobSpec.parse(job(**parts)).model_dump_json()), NOTHING)


@pytest.mark.parametrize(
    ("items", "path", "is_allowed"),
    [
        ("acme.detectors:*", "acme.detectors:orders", True),
        ("acme.detectors:orders, acme.scores:one", "acme.scores:one", True),
        ("acme.detectors:*", "acme.detectors_of_mine:orders", False),
        ("acme.detectors:o", "acme.detectors:orders", False),
        ("", "acme.detectors:orders", False),
    ],
)
def test_a_list_has_names_and_prefixes(items: str, path: str, is_allowed: bool) -> None:
    allowed = read_options(lambda _: items)
    spec = JobSpec.parse(job(safety=detector(path)))
    if is_allowed:
        check_allowed(spec, allowed)
    else:
        with pytest.raises(JobSpecError, match="is named neither"):
            check_allowed(spec, allowed)


def test_a_path_does_not_leave_the_directory_of_a_prefix() -> None:
    spec = JobSpec.parse(job(runner={"type": "prism", "binary_path": "/opt/prism/../../tmp/evil"}))
    with pytest.raises(JobSpecError, match="is named neither"):
        check_allowed(spec, NOTHING | {"allowed_programs": ("/opt/prism/*",)})


@pytest.mark.parametrize(
    "parts",
    [
        {"model": OPENAI | {"api_key_env": "AIRFLOW__CORE__FERNET_KEY"}},
        {"sink": {"type": "postgres", "table": "t", "dsn_env": "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"}},
        {"safety": {"privacy": {"key_env": "airflow__core__fernet_key"}}},
        {"runner": DATAFLOW | {"environment_secrets": {"AIRFLOW__CORE__FERNET_KEY": SECRET}}},
    ],
)
def test_no_spec_names_a_variable_of_airflows_configuration(parts: dict[str, Any]) -> None:
    with pytest.raises(JobSpecError, match=r"must not be a variable of Airflow's configuration"):
        JobSpec.parse(job(**parts))


GEMINI = {"type": "gemini", "project": "p"}
CLOUD_RUN = {"type": "openai", "name": "m", "id_token_audience": "https://mine-1.a.run.app"}
ENDPOINT = {"type": "vertex_endpoint", "name": "m", "endpoint": "projects/p/locations/us-central1/endpoints/7"}


@pytest.mark.parametrize(
    "model",
    [
        GEMINI,
        GEMINI | {"location": "europe-west4"},
        GEMINI | {"base_url": "https://aiplatform-psc.p.googleapis.com"},
        GEMINI | {"base_url": "http://127.0.0.1:8080"},
        GEMINI | {"base_url": "http://[::1]:8080"},
        GEMINI | {"base_url": "https://proxy.example/vertex"},
        ENDPOINT,
        ENDPOINT | {"base_url": "https://7.us-central1-1.prediction.vertexai.goog"},
        ENDPOINT | {"predict_url": "http://10.0.0.2/predict"},
        CLOUD_RUN | {"base_url": "https://mine-1.a.run.app/v1"},
        CLOUD_RUN | {"base_url": "https://proxy.example/v1"},
        OPENAI,
        {"type": "gemini", "base_url": "http://attacker.example"},
        "echo",
    ],
)
def test_a_token_goes_to_google_to_this_machine_and_to_configured_hosts(model: Any) -> None:
    check_allowed({"model": parse_model(model)}, NOTHING | {"token_hosts": ("proxy.example",)})


@pytest.mark.parametrize(
    "model",
    [
        GEMINI | {"base_url": "https://attacker.example"},
        GEMINI | {"base_url": "https://attacker-1.a.run.app"},
        GEMINI | {"base_url": "http://aiplatform.googleapis.com"},
        GEMINI | {"base_url": "http://proxy.example"},
        GEMINI | {"base_url": "https://googleapis.com.attacker.example"},
        GEMINI | {"base_url": "https://attacker.example\\.googleapis.com"},
        GEMINI | {"base_url": "https://attackergoogleapis.com"},
        GEMINI | {"location": "attacker.example/x"},
        GEMINI | {"location": "attacker.example\\"},
        ENDPOINT | {"base_url": "https://attacker.example"},
        CLOUD_RUN | {"base_url": "https://attacker-1.a.run.app/v1"},
        CLOUD_RUN | {"base_url": "http://mine-1.a.run.app/v1"},
        CLOUD_RUN | {"base_url": "https://attacker.example/v1", "id_token_audience": "https://attacker.example"},
        CLOUD_RUN,
    ],
)
def test_a_token_goes_nowhere_else(model: dict[str, Any]) -> None:
    with pytest.raises(JobSpecError, match=r"A Google token would be sent to "):
        check_allowed(
            {"model": parse_model(model)}, NOTHING | {"token_hosts": ("proxy.example",)}, {"model": model}
        )


def test_the_texts_for_a_detector_of_google_go_to_google() -> None:
    privacy = Privacy.parse({"detectors": [{"type": "dlp", "base_url": "https://attacker.example"}]})
    with pytest.raises(JobSpecError, match="A Google token"):
        check_allowed({"privacy": privacy}, NOTHING)
    check_allowed({"privacy": Privacy.parse({"detectors": [{"type": "dlp"}]})}, NOTHING)


def test_each_kind_has_an_option() -> None:
    assert {kind.option for kind in (Function, Program, Variable)} < set(OPTIONS)
