"""Which server takes which parameter: the table, the documentation, the rules and the requests say the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_llmbeam.providers.anthropic.client import parameters as anthropic_parameters
from airflow_provider_llmbeam.providers.gemini.client import constant_fields, generation_config
from airflow_provider_llmbeam.providers.openai.client import model_parameters
from airflow_provider_llmbeam.providers.vertex_endpoint.client import VertexChat, VertexRaw
from airflow_provider_llmbeam.spec import Generation, JobSpec
from airflow_provider_llmbeam.spec.model import parse_model

ENDPOINT = "projects/p/locations/us-central1/endpoints/e"
TEMPLATE = "projects/p/locations/us-central1/templates/t"
#: A model of each column of the documentation, and at the end `echo`.
MODELS: dict[str, dict[str, Any]] = {
    "gemini_developer": {"type": "gemini", "name": "gemini-3-flash"},
    "gemini_vertex": {"type": "gemini", "name": "gemini-3-flash", "project": "p"},
    "openai": {"type": "openai", "name": "gpt-5-mini"},
    "anthropic": {"type": "anthropic", "name": "claude-haiku-5-5"},
    "chat": {"type": "openai", "name": "gemma", "base_url": "http://127.0.0.1:9/v1"},
    "endpoint": {"type": "vertex_endpoint", "name": "gemma", "endpoint": ENDPOINT},
    "plain": {"type": "vertex_endpoint", "name": "gemma", "endpoint": ENDPOINT, "request_format": "raw"},
    "echo": {"type": "echo"},
}
VALUES: dict[str, Any] = {
    "max_output_tokens": 7,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "seed": 1,
    "stop_sequences": ["END"],
    "thinking_budget_tokens": 0,
    "thinking_level": "low",
    "reasoning_effort": "low",
    "media_resolution": "low",
    "safety_settings": {"HARM_CATEGORY_HARASSMENT": "BLOCK_ONLY_HIGH"},
    "model_armor": {"prompt": TEMPLATE},
    "google_search": True,
    "logprobs": True,
    "structured_outputs": {"choice": ["a", "b"]},
    "stream": True,
    "stream_idle_timeout_seconds": 5.0,
    "extra_body": {"min_p": 0.1},
    "strip_reasoning": False,
    "keep_reasoning": True,
}
CASES = [(server, name) for server in MODELS for name in VALUES]
#: Parameters of how an answer arrives; the address of the request or a timeout, not its body, depends on them.
TRANSPORT = {"stream", "stream_idle_timeout_seconds", "strip_reasoning", "keep_reasoning"}


def use_of(name: str, server: str) -> str:
    return parse_model(MODELS[server]).parameters.use_of(name)


def sent_fields(server: str, generation: Generation) -> Any:
    """Returns what all requests of a job have in common."""
    model = parse_model(MODELS[server])
    match server:
        case "gemini_developer" | "gemini_vertex":
            return generation_config(generation, None) | constant_fields(generation)
        case "openai" | "chat":
            return model_parameters(model, generation, None)  # type: ignore[arg-type]
        case "anthropic":
            return anthropic_parameters(generation, None)
        case "endpoint":
            return VertexChat(model, generation, None)._parameters  # type: ignore[arg-type]
        case "plain":
            return VertexRaw(model, generation)._parameters  # type: ignore[arg-type]
        case _:
            return None


def test_the_tables_of_this_test_are_complete():
    assert VALUES.keys() == Generation.model_fields.keys()
    assert len({parse_model(model).parameters.server for model in MODELS.values()}) == len(MODELS)


def test_the_documentation_has_the_same_table():
    text = (Path(__file__).parents[4] / "docs/parameters.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ((?:sent|refused|ignored).+) \|$", text, re.MULTILINE)
    assert "The model `echo` ignores all." in text
    assert {name: [*uses.split(" | "), "ignored"] for name, uses in rows} == {
        name: [use_of(name, server) for server in MODELS] for name in VALUES
    }


@pytest.mark.parametrize(("server", "name"), CASES)
def test_a_parameter_is_refused_when_the_dag_is_parsed_or_taken(job, server, name):
    problems = JobSpec.problems(job(model=MODELS[server], generation={name: VALUES[name]}))
    if use_of(name, server) == "refused":
        (problem,) = problems
        assert problem.field == f"generation.{name}"
        assert "does not take it" in problem.want
    else:
        assert problems == ()


@pytest.mark.parametrize(("server", "name"), CASES)
def test_a_parameter_that_is_sent_changes_the_requests_and_one_that_is_ignored_is_named(server, name, google):
    changed = Generation(**{name: VALUES[name]})
    use = use_of(name, server)
    assert (name in parse_model(MODELS[server]).parameters.find_ignored(changed)) == (use == "ignored")
    if name not in TRANSPORT and use != "refused":
        assert (sent_fields(server, changed) != sent_fields(server, Generation())) == (use == "sent")


def test_a_parameter_that_a_connection_may_make_possible_is_not_refused_when_the_dag_is_parsed(job):
    data = job(model=MODELS["gemini_developer"], generation={"model_armor": {"prompt": TEMPLATE}})
    assert JobSpec.problems(data, has_connection=True) == ()
    (problem,) = JobSpec.problems(data)
    assert str(problem) == (
        "`generation.model_armor`: must be left out: the Gemini Developer API does not take it; set "
        "`model.project`, as Vertex AI has it; got {'prompt': …}."
    )


@pytest.mark.parametrize(
    ("parts", "field", "message"),
    [
        (
            {"generation": {"thinking_level": "low"}, "model": "gemini-2.5-flash"},
            "generation.thinking_level",
            "models before Gemini 3 take `thinking_budget_tokens`",
        ),
        (
            {"generation": {"thinking_level": "low", "thinking_budget_tokens": 0}},
            "generation",
            "has both `thinking_level` and `thinking_budget_tokens`",
        ),
        (
            {
                "model": MODELS["gemini_vertex"],
                "generation": {
                    "model_armor": {"prompt": TEMPLATE},
                    "safety_settings": VALUES["safety_settings"],
                },
            },
            "generation",
            "has both `model_armor` and `safety_settings`",
        ),
        ({"generation": {"stream": True, "logprobs": True}}, "generation", "has both `stream` and `logprobs`"),
        (
            {"generation": {"stream": True, "google_search": True}},
            "generation",
            "has both `stream` and `google_search`",
        ),
        (
            {"generation": {"safety_settings": {"HARASSMENT": "OFF"}}},
            "generation.safety_settings.HARASSMENT.[key]",
            "HARM_CATEGORY_HARASSMENT",
        ),
        (
            {"generation": {"model_armor": {"prompt": "my-template"}}},
            "generation.model_armor.prompt",
            "must be a template of Model Armor",
        ),
        (
            {"model": MODELS["chat"], "generation": {"structured_outputs": {"choice": "yes"}}},
            "generation.structured_outputs",
            "must have one of `choice`",
        ),
        (
            {"model": MODELS["chat"], "generation": {"structured_outputs": {"choice": ["a"], "regex": "a"}}},
            "generation.structured_outputs",
            "must have one of `choice`",
        ),
        (
            {
                "model": MODELS["chat"],
                "generation": {"structured_outputs": {"choice": ["a"]}},
                "prompt": {"template": "{{ row.a }}", "output_schema": {"type": "string"}},
            },
            "generation.structured_outputs",
            "must be left out with `prompt.output_schema`",
        ),
        (
            {
                "model": "gemini-2.5-flash",
                "generation": {"google_search": True},
                "prompt": {"template": "{{ row.a }}", "output_schema": {"type": "object"}},
            },
            "generation.google_search",
            "models before Gemini 3 refuse both together",
        ),
        (
            {"generation": {"google_search": True}, "limits": {"budget_usd": 1.0}},
            "limits.budget_usd",
            "must be left out with `generation.google_search`",
        ),
        (
            {"generation": {"google_search": True}, "inference": {"mode": "batch"}},
            "inference.mode",
            "must be 'online' with `generation.google_search`",
        ),
        (
            {"generation": {"logprobs": True}, "source": {"uri": "in/*.jsonl", "key": ["llmbeam_mean_logprob"]}},
            "source.key",
            "has column 'llmbeam_mean_logprob', and every output row has",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_parameters_that_do_not_go_together_are_refused(job, parts, field, message):
    (problem, *_) = JobSpec.problems(job(**{"model": MODELS["gemini_developer"], **parts}))
    assert (problem.field, message in problem.want) == (field, True), problem


def test_a_schema_and_a_search_go_together_from_gemini_3_on(job):
    prompt = {"template": "{{ row.a }}", "output_schema": {"type": "object"}}
    assert JobSpec.problems(job(model="gemini-3.1-pro", prompt=prompt, generation={"google_search": True})) == ()


#: Largest values that each server takes; those that it documents no bound for take any.
SEED_BITS = dict.fromkeys(MODELS, 64) | {"gemini_developer": 32, "gemini_vertex": 32}
STOP_SEQUENCES = dict.fromkeys(MODELS, 100) | {"gemini_developer": 5, "gemini_vertex": 5, "openai": 4}


@pytest.mark.parametrize("server", [name for name in MODELS if use_of("seed", name) != "refused"])
def test_a_value_above_what_the_provider_documents_is_refused_when_the_dag_is_parsed(job, server):
    half, most = 2 ** (SEED_BITS[server] - 1), STOP_SEQUENCES[server]
    for name, taken, refused, want in (
        ("seed", [-half, half - 1], [half, -half - 1], "must be from -2147483648 to 2147483647: "),
        (
            "stop_sequences",
            [["a"] * most, ["\n" * 500]],
            [["a"] * (most + 1)],
            f"must have at most {most} texts: ",
        ),
    ):
        for value in taken:
            assert JobSpec.problems(job(model=MODELS[server], generation={name: value})) == ()
        for value in refused if half == 2**31 or (name, server) == ("stop_sequences", "openai") else ():
            (problem,) = JobSpec.problems(job(model=MODELS[server], generation={name: value}))
            assert problem.field == f"generation.{name}"
            assert problem.want.startswith(want)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"seed": 2**63}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"stop_sequences": ["a", ""]}, "stop_sequences"),
    ],
)
def test_what_no_server_takes_is_refused(job, given, field):
    for model in MODELS.values():
        (problem,) = JobSpec.problems(job(model=model, generation=given))
        assert problem.field.startswith(f"generation.{field}")
