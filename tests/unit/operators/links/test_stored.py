"""Links only where they lead somewhere, and no empty XComs."""

from __future__ import annotations

import pytest
from airflow.sdk import DAG
from airflow.sdk.execution_time.xcom import XCom
from airflow.serialization import serialized_objects

from airflow_provider_llmbeam.operators.links import OutputLink
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

ARGUMENTS = {
    "source": {"uri": "a.csv", "key": ["id"]},
    "prompt": {"template": "Say {{ row.text }}", "variables": {"day": "{{ ds }}"}},
    "model": {"type": "echo"},
}

#: Airflow 3.1 and 3.2 have it under another name.
TO_DICT = getattr(serialized_objects, "DagSerialization", serialized_objects.SerializedDAG).to_dict


@pytest.fixture
def dag():
    with DAG("links", schedule=None) as dag:
        RunInferenceOperator(task_id="one", sink={"uri": "out"}, **ARGUMENTS)
        RunInferenceOperator.partial(task_id="mapped", **ARGUMENTS).expand(sink=[{"uri": "a"}, {"uri": "b"}])
    return dag


class TaskInstance:
    def __init__(self):
        self.pushed = {}

    def xcom_push(self, key, value):
        self.pushed[key] = value


@pytest.mark.parametrize(("url", "keys"), [(None, []), ("https://x.test/", ["llmbeam_output_link"])])
def test_a_task_that_has_run_has_the_links_whose_url_it_stored_and_reads_no_other(dag, monkeypatch, url, keys):
    monkeypatch.setattr(XCom, "get_value", None)  # Airflow logs an error for an XCom that is missing
    task, ti = dag.get_task("one"), TaskInstance()
    task.pre_execute({"ti": ti})
    task.store_link({"ti": ti}, OutputLink(), url)
    assert [link.xcom_key for link in task.operator_extra_links] == [*ti.pushed] == keys


def test_a_resumed_task_has_the_links_that_an_earlier_process_stored_and_reads_them_once(dag, monkeypatch):
    stored = {"llmbeam_dataflow_link": "https://x.test/"}
    monkeypatch.setattr(XCom, "get_value", lambda *, ti_key, key: stored.get(key))
    task = dag.get_task("one")
    task.pre_execute({"ti": "ti"})
    monkeypatch.setattr(task, "execute_complete", lambda context: None, raising=False)
    task.resume_execution("execute_complete", {}, {"ti": "ti"})
    assert [link.xcom_key for link in task.operator_extra_links] == [*stored]
    monkeypatch.setattr(XCom, "get_value", None)  # `dag.test` asks again after the task, and logs the error
    assert [link.xcom_key for link in task.operator_extra_links] == [*stored]


def test_a_serialized_dag_has_all_links_also_of_a_mapped_task(dag):
    found = TO_DICT(dag)["dag"]["tasks"]
    for task in found:
        assert set(task["__var"]["_operator_extra_links"]) == {
            "Open in Dataflow",
            "Open in Flink",
            "Output",
            "Report",
        }


def test_the_prompt_is_among_the_rendered_fields_as_it_was_written(dag):
    task = dag.get_task("one")
    task.render_template_fields({"ds": "2026-11-22"})
    assert task.prompt_variables == {"day": "2026-11-22"}
    assert task.prompt == ARGUMENTS["prompt"]
    (shown,) = [one for one in TO_DICT(dag)["dag"]["tasks"] if one["__var"]["task_id"] == "one"]
    assert shown["__var"]["prompt_per_row"] == {"template": "Say {{ row.text }}"}


def test_a_serialized_dag_does_not_change_from_parse_to_parse(dag):
    assert TO_DICT(dag) == TO_DICT(dag)
