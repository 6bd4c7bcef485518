"""Mistakes of `tests/mistakes` that only a task can find, on a real scheduler with `retries=2`."""

from __future__ import annotations

from pathlib import Path

import pytest
from waiting import scaled

from airflow_provider_llmbeam.sandbox import Fault
from tests.integration.cases import Cloud, Run
from tests.mistakes.at_the_start import MISTAKES as AT_THE_START
from tests.mistakes.in_the_answers import MISTAKES as IN_THE_ANSWERS
from tests.mistakes.mistake import Mistake
from tests.mistakes.running import FAULTS, write_files

pytestmark = [pytest.mark.xdist_group("airflow-services"), pytest.mark.timeout(scaled(300))]
GEMINI = "gemini.generateContent"
#: Fields with a path, which the table has relative to the directory of the mistake.
PATHS = (("source", "uri"), ("sink", "uri"), ("state_uri",))
#: The table's sandbox knows no other models than real ones; that of the other modules answers for every name.
NO_SUCH_MODEL = Fault(
    kind="error",
    http_status=404,
    message="models/gemini-9-ultra is not found for API version v1beta, or is not supported for generateContent.",
)


#: The connection that all tasks use has a key, so the mistake of a missing key cannot be made with it.
MISTAKES = [mistake for mistake in (*AT_THE_START, *IN_THE_ANSWERS) if "OPENAI_API_KEY" not in mistake.sentence]


class MistakesRun(Run):
    """A run of the Dag with one task for each mistake."""

    def __init__(self, cloud: Cloud, specs: list[dict]) -> None:
        self._specs = specs
        super().__init__(cloud, "mistakes")

    def conf(self) -> dict:
        return {"specs": self._specs}

    def ended(self) -> dict[int, tuple[str, int, str]]:
        """Returns state, number of tries and log of each task."""
        found = self.cloud.execute(
            "SELECT map_index, state, try_number FROM task_instance WHERE run_id = %s AND task_id = 'mistake'",
            self.run_id,
        )
        return {index: (state, tries, self.log(f"mistake/map_index={index}")) for index, state, tries in found}


def marked(number: int) -> str:
    """Returns the text by which the model server recognises the requests of a mistake."""
    return f"Of mistake {number:02}, review"


def write(mistake: Mistake, directory: Path, marker: str) -> dict:
    """Writes the files of a mistake; returns the arguments of the operator."""
    directory.mkdir()
    write_files(mistake, directory, marker)
    spec = mistake.spec("")
    spec["model"].pop("base_url", None)
    del spec["name"]
    for *parents, last in PATHS:
        at = spec
        for parent in parents:
            at = at[parent]
        if last in at:
            at[last] = f"{directory}/{at[last]}"
    return spec


@pytest.fixture(scope="module")
def ended(cloud, model_connection, tmp_path_factory):
    """State, number of tries, and log of the task of each mistake."""
    directory = tmp_path_factory.mktemp("mistakes")
    specs = []
    for number, mistake in enumerate(MISTAKES):
        specs.append(write(mistake, directory / f"{number:02}", marked(number)))
        fault = NO_SUCH_MODEL if "gemini-9-ultra" in mistake.sentence else FAULTS.get(mistake.server)
        if fault is not None:
            cloud.sandbox.faults.when(GEMINI, marked(number), fault)
    run = MistakesRun(cloud, specs)
    run.until(lambda: run.state in ("success", "failed"), "the run ends", pause_seconds=1)
    return {
        number: (state, tries, log.replace(f"{directory}/{number:02}/", ""))
        for number, (state, tries, log) in run.ended().items()
    }


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_a_mistake_fails_once_with_its_sentence(ended, number):
    state, tries, log = ended[number]
    print(log)
    assert (state, tries) == ("failed", 1)
    # In Airflow a sink belongs to a task, not to a job by its name.
    assert MISTAKES[number].sentence.replace("'moods'", f"'mistakes.mistake[{number}]'") in log


def test_only_what_an_answer_must_show_is_sent(ended, cloud):
    assert cloud.sandbox.stats()["methods"][GEMINI]["calls"] <= sum(mistake.requests for mistake in MISTAKES)
