"""`llmbeam doctor` from the command line, in an Airflow without a database."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from airflow_provider_llmbeam.cli import llmbeam
from airflow_provider_llmbeam.doctor.finding import Diagnosis, Finding
from airflow_provider_llmbeam.doctor.run import diagnose

ECHO = {
    "name": "moods",
    "source": {"type": "rows", "rows": [{"id": 1, "text": "a"}], "key": ["id"]},
    "prompt": {"template": "{{ row.text }}"},
    "model": {"type": "echo"},
    "sink": {"uri": "moods"},
}
DAG = """
from airflow.sdk import DAG
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

with DAG("shop", schedule=None):
    RunInferenceOperator(
        task_id="classify",
        llmbeam_conn_id={conn_id!r},
        source={source},
        prompt="{{{{ row.text }}}}",
        model={{"type": "echo"}},
        sink={sink!r},
    )
"""


def test_a_job_of_a_file_that_needs_no_cloud_is_examined_here(tmp_path):
    job = tmp_path / "job.json"
    job.write_text(json.dumps(ECHO))
    ended = CliRunner().invoke(llmbeam, ["doctor", str(job)])
    assert (ended.exit_code, ended.stdout.splitlines()[-1]) == (0, "1 hold, 0 do not, 0 cannot be seen from here.")
    ended = CliRunner().invoke(llmbeam, ["doctor", str(job), "--json"])
    (found,) = json.loads(ended.stdout)["findings"]
    assert (found["subject"], found["verdict"]) == ("packages", "holds")


def test_a_task_of_a_dag_is_examined_and_its_missing_connection_is_a_fault(tmp_path):
    dag = tmp_path / "shop.py"
    rows = {"type": "rows", "rows": [{"id": 1, "text": "a"}], "key": "id"}
    sink = str(tmp_path / "moods")
    dag.write_text(DAG.format(source=rows, sink=sink, conn_id="llmbeam_default"))
    assert not diagnose(f"{dag}::classify").has_fault
    dag.write_text(DAG.format(source=rows, sink=sink, conn_id="no_such"))
    (found,) = diagnose(f"{dag}::classify").findings
    assert (found.verdict, found.remedy) == ("fault", "airflow connections add CONN_ID --conn-type TYPE …")
    assert "there is no connection 'no_such'" in found.sentence


@pytest.mark.parametrize("content", [None, "{", json.dumps({**ECHO, "model": {"type": "gimini"}})])
def test_a_job_that_cannot_be_read_is_a_fault(tmp_path, content):
    job = tmp_path / "job.json"
    if content is not None:
        job.write_text(content)
    ended = CliRunner().invoke(llmbeam, ["doctor", str(job)])
    assert ended.exit_code == 1
    assert f"→ llmbeam check {job}" in ended.stdout


def test_secrets_are_shown_in_no_finding():
    url = "https://user:hunter2secret@proxy/"
    found = Diagnosis([Finding(subject="network", verdict="fault", sentence=f"{url} does not answer.")])
    assert "hunter2secret" not in str(found)
    assert "hunter2secret" not in json.dumps(found.plain())
