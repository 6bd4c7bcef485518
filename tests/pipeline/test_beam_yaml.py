"""`LLMInference` in Beam YAML."""

from __future__ import annotations

import json
from importlib.resources import files

import apache_beam as beam
import pytest
import yaml
from apache_beam.yaml import main, yaml_provider, yaml_transform
from llmbeam_sandbox import Fault

GEMINI = "gemini.generateContent"
INLINE = {
    "type": "python",
    "config": {},
    "transforms": {"LLMInference": "airflow_provider_llmbeam.beam.LLMInference"},
}
SHIPPED = {"include": str(files("airflow_provider_llmbeam") / "pipeline" / "public" / "providers.yaml")}
SCHEMA = {"type": "object", "properties": {"label": {"enum": ["late", "lost"]}}, "required": ["label"]}


def pipeline_of(config, provider=INLINE, fields="f'{id} {answer.label}'"):
    """Returns a pipeline that writes answers and failed rows as lines; `out` is a variable of Jinja."""
    elements = [{"id": number, "text": f"ticket {number}"} for number in range(20)]

    def lines(name, source, expression):
        to_line = {"language": "python", "fields": {"line": {"expression": expression}}}
        return [
            {"type": "MapToFields", "name": f"{name} lines", "input": source, "config": to_line},
            {
                "type": "WriteToText",
                "name": f"Write {name}",
                "input": f"{name} lines",
                "config": {"path": f"{{{{ out }}}}/{name}"},
            },
        ]

    return yaml.safe_dump(
        {
            "pipeline": {
                "transforms": [
                    {"type": "Create", "name": "Tickets", "config": {"elements": elements}},
                    {"type": "LLMInference", "name": "Label", "input": "Tickets", "config": config},
                    *lines("good", "Label", fields),
                    *lines("failed", "Label.failed", "f'{element.id} {msg}'"),
                ]
            },
            "providers": [provider],
        },
        width=1000,
    )


def written(directory, name):
    return sorted(line for path in directory.glob(f"{name}-*") for line in path.read_text().splitlines() if line)


@pytest.mark.parametrize(
    ("provider", "columns"), [(INLINE, "struct"), (SHIPPED, "flat")], ids=["inline", "shipped"]
)
def test_a_pipeline_answers_each_row_or_gives_it_to_the_error_output(sandbox, tmp_path, provider, columns):
    sandbox.faults.queue(GEMINI, *[Fault(kind="rate-limit", retry_delay_seconds=0.01)] * 5)
    sandbox.faults.when(GEMINI, "ticket 13", Fault(kind="error", http_status=400, message="no"))
    config = {
        "prompt": {
            "template": "{% raw %}Label {{ row.text }}{% endraw %}",
            "output_schema": SCHEMA,
        },
        "model": {"type": "gemini", "name": "gemini-2.5-flash", "base_url": "{{ url }}"},
        "answer_columns": columns,
        "error_handling": {"output": "failed"},
    }
    text = pipeline_of(config, provider, "f'{id} {answer.label}'" if columns == "struct" else "f'{id} {label}'")
    variables = json.dumps({"url": sandbox.gemini_url, "out": str(tmp_path)})
    main.run(["--yaml_pipeline", text, "--jinja_variables", variables, "--runner", "FnApiRunner"])
    good = dict(line.split(" ") for line in written(tmp_path, "good"))
    assert sorted(map(int, good)) == [number for number in range(20) if number != 13]
    assert {*good.values()} <= {"late", "lost"}
    assert written(tmp_path, "failed") == ["13 bad_request: no"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"type": "gemni"}}, "`model.type`: must be one of 'gemini', "),
        (
            {"limits": {"request_per_minute": 1}},
            "`limits.request_per_minute`: there is no such field; did you mean",
        ),
        ({"journal_uri": 3}, "`journal_uri`: must be a text; got 3"),
        ({"promt": "Hello"}, "got an unexpected argument 'promt'"),
    ],
    ids=["model", "limits", "journal", "unknown"],
)
def test_the_error_names_the_field_and_the_line(changes, message):
    config = {"prompt": "{{ row.text }}", "model": {"type": "echo"}, "error_handling": {"output": "failed"}}
    with pytest.raises(ValueError, match='Invalid transform specification at "Label" at line') as raised:
        yaml_transform.expand_pipeline(beam.Pipeline(), pipeline_of(config | changes))
    assert message in str(raised.value)


def test_an_error_output_that_nothing_reads_is_refused_by_beam():
    config = {"prompt": "{{ row.text }}", "model": {"type": "echo"}, "error_handling": {"output": "lost"}}
    with pytest.raises(ValueError, match='Unconsumed error output for "Label"'):
        yaml_transform.expand_pipeline(beam.Pipeline(), pipeline_of(config))


def test_a_prompt_that_jinja_would_render_with_the_pipeline_is_an_error_before_anything_runs():
    config = {"prompt": "{{ row.text }}", "model": {"type": "echo"}, "error_handling": {"output": "failed"}}
    variables = json.dumps({"out": "out"})
    with pytest.raises(Exception, match="'row' is undefined"):
        main.run(["--yaml_pipeline", pipeline_of(config), "--jinja_variables", variables])


def test_beam_reads_the_parameters_and_their_descriptions():
    (provider,) = yaml_provider.parse_providers("", [INLINE])
    fields = {field.name: field.description for field in provider.config_schema("LLMInference").fields}
    assert {"prompt", "model", "limits", "journal_uri", "error_handling"} <= fields.keys()
    assert all(fields.values())
    assert provider.description("LLMInference").startswith("Renders a prompt for each row")
