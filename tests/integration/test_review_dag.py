"""`dags/reviewed_answers.py` on a real Airflow: reviews that are answered through its API become golden rows."""

from __future__ import annotations

import json
import shutil

import pytest
from waiting import scaled

from tests.integration.cases import STEP_SECONDS, Run

pytestmark = [pytest.mark.xdist_group("airflow-services"), pytest.mark.timeout(scaled(300))]
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

    def waiting():
        """The forms, once all tasks wait without a slot."""
        statement = (
            "SELECT count(*) FROM task_instance WHERE run_id = %s AND task_id = 'review' AND state = ANY(%s)"
        )
        ((count,),) = cloud.execute(statement, run.run_id, ["awaiting_input", "deferred"])
        return airflow.required_actions(REVIEWED, run.run_id) if count == ROWS else None

    forms = run.until(waiting, "all reviews wait for a person")
    # Airflow 3.3 loses a response that is faster than the scheduler, and asks again if the task has a retry.
    cloud.wait_heartbeats("SchedulerJob")
    forms.sort(key=lambda form: "7 * 7" not in form["body"])
    assert HOSTILE.replace("\r", "") in forms[0]["body"], "nothing in it is rendered"
    assert forms[0]["body"].count("`````") == 2
    assert not any("secret" in form["body"] for form in forms), "`columns` names what a person sees"
    answers = [form["params"]["mood"] for form in forms]
    assert answers[0]["schema"]["enum"] == MOODS
    wrong = MOODS[(MOODS.index(answers[1]["value"]) + 1) % len(MOODS)]
    for number, (form, answer) in enumerate(zip(forms, answers, strict=True)):
        option = "Leave out" if number == 2 else "Accept"
        airflow.respond(form["task_instance"], option, {"mood": wrong if number == 1 else answer["value"]})
    run.until(lambda: run.state == "success", "the run ends")

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
