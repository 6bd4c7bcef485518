"""A mistake of each way in which Airflow shows one; all of them, through the command line: `tests/mistakes`."""

from __future__ import annotations

import re

import pytest
from waiting import scaled

from tests.integration.cases import Run
from tests.mistakes.at_the_start import MISTAKES as AT_THE_START
from tests.mistakes.in_source import MISTAKES as IN_SOURCE
from tests.mistakes.in_the_answers import MISTAKES as IN_THE_ANSWERS
from tests.mistakes.running import FAULTS, write_files

GEMINI = "gemini.generateContent"
MARKER = "Of a mistake, review"
(NO_FILE,) = (each for each in AT_THE_START if each.changes == {"source.uri": "no-*.jsonl"})
(REFUSED,) = (each for each in IN_THE_ANSWERS if each.server == "refuses the request")
(PARSED,) = (each for each in IN_SOURCE if "source.keys" in each.changes)
DAG = """
from airflow.sdk import DAG

from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

with DAG("mistake", schedule=None):
    RunInferenceOperator(task_id="ask", **{arguments})
"""


def arguments(mistake, folder):
    """Writes the files of a mistake; returns the arguments of the operator."""
    folder.mkdir()
    write_files(mistake, folder, MARKER)
    spec = mistake.spec("")
    del spec["name"], spec["model"]["base_url"]
    spec["source"]["uri"] = f"{folder}/{spec['source']['uri']}"
    spec["sink"]["uri"] = f"{folder}/out/"
    return spec


def test_a_mistake_of_the_spec_is_an_import_error_of_its_dag(dag_bags, tmp_path):
    file = tmp_path / "mistake.py"
    file.write_text(DAG.format(arguments=arguments(PARSED, tmp_path / "data")))
    bag = dag_bags.DagBag(file, bundle_path=tmp_path)
    assert not bag.dags
    assert PARSED.sentence.removesuffix(" Nothing was sent or billed.") in bag.import_errors[file.name]


class MistakesRun(Run):
    """A run of the Dag with one task for each mistake, and with `retries=2`."""

    def __init__(self, cloud, specs):
        self._specs = specs
        super().__init__(cloud, "mistakes")

    def conf(self):
        return {"specs": self._specs}


@pytest.mark.full
@pytest.mark.xdist_group("airflow-services")
@pytest.mark.timeout(scaled(300))
def test_a_mistake_fails_its_task_once_before_a_request_or_by_the_first_answers(cloud, model_connection, tmp_path):
    mistakes = (NO_FILE, REFUSED)
    cloud.sandbox.faults.when(GEMINI, MARKER, FAULTS[REFUSED.server])
    run = MistakesRun(cloud, [arguments(each, tmp_path / str(number)) for number, each in enumerate(mistakes)])
    run.until(lambda: run.state in ("success", "failed"), "the run ends", pause_seconds=0.5)
    tries = cloud.execute(
        "SELECT state, try_number FROM task_instance WHERE run_id = %s AND task_id = 'mistake'", run.run_id
    )
    assert tries == [("failed", 1)] * len(mistakes)
    for number, mistake in enumerate(mistakes):
        log = run.log(f"mistake/map_index={number}").replace(f"{tmp_path}/{number}/", "")
        log = re.sub(r"\.llmbeam/[^/]+/", ".llmbeam/moods/", log)  # the job of a task has another name
        assert mistake.sentence in log
    assert cloud.sandbox.stats()["methods"][GEMINI]["calls"] <= REFUSED.requests
