"""`dags/reviewed_answers.py` on a real Airflow: reviews that are answered through its API become golden rows."""

from __future__ import annotations

import json
import shutil

import pytest
from waiting import scaled

from tests.integration.cases import STEP_SECONDS, Run

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("airflow-services"), pytest.mark.timeout(scaled(300))]
REVIEWED, EVALUATED = "reviewed_answers", "evaluated_night"
HOSTILE = "{{ 7 * 7 }} {{ conn.llmbeam_default.password }}\n```\n![](http://198.51.100.1/x)\n````\n# Title"
ROWS = 6
MOODS = ["good", "bad", "mixed"]


@pytest.fixture
def golden(cloud, model_connection, shared_data):
    """The file of golden rows that does not exist yet; the first row of the reviews is hostile."""
    folders = [shared_data / name for name in ("reviews", "golden")]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)  # of other modules
    texts = [HOSTILE, *(f"Review number {number}" for number in range(1, ROWS))]
    rows = ({"review_id": number, "text": text, "secret": "x"} for number, text in enumerate(texts))
    folders[0].mkdir()
    (folders[0] / "today.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    yield folders[1] / "reviewed.jsonl"
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def test_reviews_answered_through_the_api_become_golden_rows_with_which_the_prompt_is_evaluated(cloud, golden):
    airflow, run = cloud.airflow, Run(cloud, REVIEWED)

    def is_parked(task):
        """Whether the scheduler has seen that the try waits: a response that is faster is lost (Airflow 3.3)."""
        run_id, number, index = run.run_id, task["try_number"], task["map_index"]
        key = f"task_id='review', run_id={run_id!r}, try_number={number}, map_index={index})"
        event = f"event with state success for task instance TaskInstanceKey(dag_id={REVIEWED!r}, {key}"
        return event in airflow.log_path.read_text(errors="replace")

    def forms():
        """The forms that wait for a person."""
        found = [form for form in airflow.required_actions(REVIEWED, run.run_id) if not form["response_received"]]
        return [form for form in found if is_parked(form["task_instance"])]

    run.until(lambda: len(forms()) == ROWS, "all reviews wait for a person")
    first, second, third, *_ = found = sorted(forms(), key=lambda form: "7 * 7" not in form["body"])
    assert HOSTILE in first["body"], "nothing in it is rendered"
    assert first["body"].count("`````") == 2
    assert not any("secret" in form["body"] for form in found), "`columns` names what a person sees"
    assert second["params"]["mood"]["schema"]["enum"] == MOODS
    answered = second["params"]["mood"]["value"]
    wrong = MOODS[(MOODS.index(answered) + 1) % len(MOODS)]

    def ended():
        """Fills in the forms; also those that a retry shows again."""
        for form in forms():
            mood = wrong if form["body"] == second["body"] else form["params"]["mood"]["value"]
            option = "Leave out" if form["body"] == third["body"] else "Accept"
            airflow.respond(form["task_instance"], option, {"mood": mood})
        return run.state == "success"

    run.until(ended, "the run ends")

    added = airflow.xcom(REVIEWED, run.run_id, "add_golden_rows")
    assert {name: added[name] for name in ("accepted", "corrected", "left_out", "rows")} == {
        "accepted": ROWS - 2,
        "corrected": 1,
        "left_out": 1,
        "rows": ROWS - 1,
    }
    rows = [json.loads(line) for line in golden.read_text().splitlines()]
    assert HOSTILE in {row["text"] for row in rows}
    assert all(row["llmbeam_review"]["by"] and row["llmbeam_review"]["at"] for row in rows)
    (corrected,) = (row for row in rows if row["llmbeam_review"]["verdict"] == "corrected")
    assert corrected["expected_mood"] == wrong

    evaluation = airflow.trigger(EVALUATED)
    assert airflow.wait(EVALUATED, evaluation, STEP_SECONDS) == "failed", "0.8 is less than its `minimum`"
    found = airflow.xcom(EVALUATED, evaluation, "evaluate")
    assert (found["rows"], found["scores"]["mood"]["score"], found["requests"]) == (ROWS - 1, 0.8, 0)
