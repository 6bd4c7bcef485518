"""What assistants and editors read: llms.txt, the skill, and the JSON Schema of a spec."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from airflow_provider_llmbeam.cli import llmbeam
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.spec import JobSpec

ROOT = Path(__file__).resolve().parents[2]
SKILL = (ROOT / "skills/llmbeam/SKILL.md").read_text()
RIGHT = {
    "name": "moods",
    "source": {"uri": "reviews.jsonl", "key": ["id"]},
    "prompt": {"template": "Good, mixed or bad? {{ row.text }}"},
    "model": {"type": "gemini", "name": "gemini-3.5-flash-lite"},
    "limits": {"requests_per_minute": 600},
    "sink": {"uri": "moods"},
}
MISSING = object()
#: Mistakes by the path of their field.
MISTAKES = {
    "name": MISSING,
    "source.key": MISSING,
    "source.keys": ["id"],
    "source.type": "mysql",
    "source.on_empty": "ignore",
    "prompt.temperature": 0,
    "model.type": "gimini",
    "limits.requests_per_minute": 0,
    "limits.max_attempts": "many",
    "sink.format": "csv",
    "runner": {"type": "dataflow"},
    "generation.max_output_tokens": -1,
}


def test_the_schema_takes_a_right_spec():
    Draft202012Validator.check_schema(JobSpec.json_schema())
    assert [*Draft202012Validator(JobSpec.json_schema()).iter_errors(RIGHT)] == []
    JobSpec.parse(RIGHT)


@pytest.mark.parametrize("path", MISTAKES)
def test_a_mistake_is_caught_by_the_schema_as_by_the_package(path):
    wrong = copy.deepcopy(RIGHT)
    *above, name = path.split(".")
    part = wrong
    for each in above:
        part = part.setdefault(each, {})
    part[name] = MISTAKES[path]
    if MISTAKES[path] is MISSING:
        del part[name]
    assert not Draft202012Validator(JobSpec.json_schema()).is_valid(wrong)
    with pytest.raises(JobSpecError):
        JobSpec.parse(wrong)


def test_the_skill_has_its_head_and_each_dag_and_command_that_it_names():
    _, head, body = SKILL.split("---\n", 2)
    assert yaml.safe_load(head)["name"] == "llmbeam"
    assert len(yaml.safe_load(head)["description"]) <= 1024
    files = re.findall(r"`((?:dags|docs)/[a-z_/-]+\.(?:py|md))`", body)
    assert len(files) >= 12
    assert [each for each in files if not (ROOT / each).is_file()] == []
    assert {*re.findall(r"`llmbeam (\w+)", body)} <= {*llmbeam.commands}


def test_the_dag_of_the_skill_is_parsed():
    (code,) = re.findall(r"```python\n(.*?)```", SKILL, re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    (task,) = names["dag"].tasks
    assert isinstance(task, RunInferenceOperator)


def test_the_sentences_of_the_skill_are_those_that_are_shown():
    shown = (ROOT / "docs/reference/mistakes.md").read_text()
    rows = re.findall(r"^\| (`.+`) \| (`.+`.*) \|$", SKILL.partition("## Mistakes")[2], re.MULTILINE)
    assert len(rows) >= 5
    assert [row for row in rows if f"- {row[0]}\\\n  {row[1]}" not in shown] == []


def test_each_link_of_llms_txt_leads_to_what_is_published():
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "docs/llms.txt").read_text())

    def is_published(link: str) -> bool:
        if link == "job.schema.json" or (ROOT / link).is_file():
            return True
        page = Path(link).with_suffix(".md")
        is_dag = page.parent.name == "how-to" and (ROOT / "dags" / f"{page.stem}.py").is_file()
        return is_dag or (ROOT / "docs" / page).is_file()

    assert len(links) > 15
    assert [link for link in links if not is_published(link)] == []
