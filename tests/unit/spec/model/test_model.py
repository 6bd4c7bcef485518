from __future__ import annotations

import pytest

from airflow_provider_llmbeam.spec import (
    EchoModel,
    GeminiModel,
    Generation,
    JobSpec,
    OpenAIModel,
    VertexEndpointModel,
)


@pytest.mark.parametrize("address", ["localhost:8000/v1", "ftp://host/", "", "//host"])
@pytest.mark.parametrize("model", [GeminiModel, OpenAIModel])
def test_an_address_that_is_not_http_is_refused(model: type[GeminiModel | OpenAIModel], address: str) -> None:
    kind = model.model_fields["type"].annotation.__args__[0]  # type: ignore[union-attr]
    (problem,) = model.problems({"type": kind, "name": "m", "base_url": address})
    assert str(problem) == f"`base_url`: must start with http:// or https://; got {address!r}."


def test_a_slash_at_the_end_of_an_address_makes_no_difference() -> None:
    assert OpenAIModel(type="openai", name="m", base_url="http://host/v1/").base_url == "http://host/v1"


def test_gemini_has_no_base_url_by_default() -> None:
    assert GeminiModel().base_url is None


@pytest.mark.parametrize("model", [GeminiModel, OpenAIModel])
def test_a_model_without_a_name_is_refused(model: type[GeminiModel | OpenAIModel]) -> None:
    kind = model.model_fields["type"].annotation.__args__[0]  # type: ignore[union-attr]
    (problem,) = model.problems({"type": kind, "name": ""})
    assert problem.field == "name"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"type": "gemini"}, GeminiModel()),
        ({"type": "openai", "name": "gemma"}, OpenAIModel(type="openai", name="gemma")),
        ({"type": "echo"}, EchoModel(type="echo")),
    ],
)
def test_the_type_chooses_the_model(job, data: dict[str, str], expected: object) -> None:
    assert JobSpec.parse(job(model=data)).model == expected


def test_the_fields_of_one_model_are_not_those_of_another(job) -> None:
    (problem,) = JobSpec.problems(job(model={"type": "gemini", "api_key_env": "KEY"}))
    assert problem.field.endswith("api_key_env")
    assert problem.want.startswith("there is no such field; expected one of `base_url`, `headers`, `labels`, ")


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ({"Team": "x"}, "has a label 'Team': 'x'; both must be at most 63 of a-z, 0-9, _ and -"),
        ({"team": "Us"}, "has a label 'team': 'Us'"),
        ({"1st": "x"}, "the key must start with a letter"),
        ({"team": "x" * 64}, "at most 63"),
        ({f"l{number}": "" for number in range(65)}, "at most 64 items"),
    ],
)
def test_a_label_that_google_refuses_is_refused(labels: dict[str, str], reason: str) -> None:
    (problem,) = GeminiModel.problems({"project": "p", "labels": labels})
    assert problem.field == "labels"
    assert reason in problem.want


def test_labels_of_google_are_accepted() -> None:
    labels = {"team": "data-2", "empty": "", "l" * 63: "x" * 63}
    assert GeminiModel(project="p", labels=labels).labels == labels


def test_a_negative_latency_of_an_echo_is_refused() -> None:
    (problem,) = EchoModel.problems({"type": "echo", "latency_seconds": -1})
    assert problem.field == "latency_seconds"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_output_tokens", 0),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("top_p", 0),
        ("top_p", 1.1),
        ("seed", "lucky"),
        ("stop_sequences", "END"),
        ("thinking_budget_tokens", -2),
    ],
)
def test_a_parameter_out_of_bounds_is_refused(field: str, value: object) -> None:
    (problem,) = Generation.problems({field: value})
    assert (problem.field, problem.got) == (field, value)


def test_the_server_may_choose_the_temperature() -> None:
    assert Generation(temperature=None).temperature is None


ENDPOINT = "projects/p/locations/us-central1/endpoints/llmbeam-1"


def test_an_endpoint_without_base_url_uses_the_host_of_its_location() -> None:
    model = VertexEndpointModel(type="vertex_endpoint", name="gemma", endpoint=ENDPOINT)
    assert model.address == f"https://us-central1-aiplatform.googleapis.com/v1/{ENDPOINT}"
    assert model.request_format == "chat"


def test_an_endpoint_with_base_url_uses_it() -> None:
    base_url = "https://1.us-central1-2.prediction.vertexai.goog/"
    model = VertexEndpointModel(type="vertex_endpoint", name="gemma", endpoint=ENDPOINT, base_url=base_url)
    assert model.address == f"{base_url}v1/{ENDPOINT}"


@pytest.mark.parametrize(
    "endpoint", ["1234", "projects/p/endpoints/1", f"{ENDPOINT}/", f"https://h/v1/{ENDPOINT}"]
)
def test_an_endpoint_is_named_in_full(endpoint: str) -> None:
    (problem,) = VertexEndpointModel.problems({"type": "vertex_endpoint", "name": "g", "endpoint": endpoint})
    assert problem.field == "endpoint"


def test_the_audience_of_id_tokens_is_an_address() -> None:
    (problem,) = OpenAIModel.problems({"type": "openai", "name": "g", "id_token_audience": "my-service"})
    assert str(problem) == "`id_token_audience`: must start with http:// or https://; got 'my-service'."


@pytest.mark.parametrize("request_format", ["instances", "raw"])
@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"generation": {"stream": True}},
            "`generation.stream`: must be left out: an endpoint with request format 'instances' or 'raw' does not "
            "take it; set `model.request_format` to 'chat'; got True.",
        ),
        (
            {"prompt": {"template": "{{ row.a }}", "media": [{"uri": "{{ row.uri }}"}]}},
            "`model.request_format`: must be 'chat' for `prompt.media`; got '$'.",
        ),
    ],
)
def test_a_field_that_the_request_format_does_not_support_is_refused(job, request_format, parts, message) -> None:
    model = {"type": "vertex_endpoint", "name": "g", "endpoint": ENDPOINT}
    JobSpec.parse(job(model=model, **parts))
    (problem,) = JobSpec.problems(job(model=model | {"request_format": request_format}, **parts))
    assert str(problem) == message.replace("$", request_format)


def test_a_vertex_endpoint_is_refused_for_embeddings(job) -> None:
    model = {"type": "vertex_endpoint", "name": "g", "endpoint": ENDPOINT}
    (problem,) = JobSpec.problems(job(model=model, task="embed"))
    assert str(problem) == (
        "`model.type`: must be 'gemini' or 'openai' to embed: others generate texts only; got 'vertex_endpoint'."
    )
