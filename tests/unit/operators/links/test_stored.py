"""Links only where they lead somewhere, and no empty XComs."""

from __future__ import annotations

import pytest
from airflow.sdk import DAG
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
@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_task_stores_the_links_that_lead_somewhere_and_airflow_reads_no_other(
    dag, monkeypatch, url, keys, is_resumed
):
    task, ti = dag.get_task("one"), TaskInstance()
    assert task.operator_extra_links
    task.pre_execute({"ti": ti})
    task.store_link({"ti": ti}, OutputLink(), url)
    if is_resumed:
        monkeypatch.setattr(task, "execute_complete", lambda context: None, raising=False)
        task.resume_execution("execute_complete", {}, {"ti": ti})
    assert [*ti.pushed] == keys
    assert not task.operator_extra_links  # `finalize` reads and writes an XCom for each


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
