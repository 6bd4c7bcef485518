"""`EvaluateInferenceOperator` and `CompareInferenceOperator`, and the Dag whose night an evaluation gates."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.serialized_dag import SerializedDagModel
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, task, task_group
from airflow.utils.session import create_session
from llmbeam_sandbox.models.answers import answer_text

from airflow_provider_llmbeam.exceptions import CloudUnavailableError, JobSpecError
from airflow_provider_llmbeam.hooks.experiments import ExperimentsHook
from airflow_provider_llmbeam.operators.compare_inference import CompareInferenceOperator
from airflow_provider_llmbeam.operators.evaluate_inference import EvaluateInferenceOperator
from airflow_provider_llmbeam.operators.other_models import OtherModels
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from tests.integration.cases import shown_page

FILE = Path(__file__).resolve().parents[2] / "dags" / "evaluated_night.py"
BAD = "Mood? {{ row.text }}"
ROWS = [{"review_id": number, "text": f"review {number}"} for number in range(30)]


@pytest.fixture
def night(connection, monkeypatch, tmp_path):
    """The module of the unmodified Dag; the golden set has the answers of the sandbox to its prompt."""
    monkeypatch.setenv("LLMBEAM_DATA", str(tmp_path))
    spec = importlib.util.spec_from_file_location("evaluated_night", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    prompt = module.JOB["prompt"]
    golden = []
    for row in ROWS[:20]:
        text = prompt["template"].replace("{{ row.text }}", row["text"])
        found = json.loads(answer_text(text, model=module.JOB["model"], schema=prompt["output_schema"]).text)
        golden.append(row | {"expected_mood": found["mood"]})
    for name, rows in (("reviews", ROWS), ("golden", golden)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return module


@pytest.mark.full
def test_an_evaluation_is_one_run_of_an_experiment_also_after_a_retry(
    run_dag, night, sandbox, google, monkeypatch
):
    """The first try ends after it has written the run."""
    log_run, calls = ExperimentsHook.log_run, []

    def log_and_fail(*arguments):
        calls.append(log_run(*arguments))
        if len(calls) == 1:
            raise CloudUnavailableError("The worker is gone.")
        return calls[-1]

    monkeypatch.setattr(ExperimentsHook, "log_run", log_and_fail)
    task = night.dag.get_task("evaluate")
    task.experiment, task.retries, task.retry_delay = "moods", 1, timedelta(0)
    dag_run, states = run_dag(night.dag)
    assert states["evaluate"] == "success"
    found = dag_run.get_task_instance("evaluate").xcom_pull(task_ids="evaluate")
    assert (found["requests"], len(calls)) == (0, 2), "the first try has sent them"
    experiment, run = sandbox.contexts
    assert found["experiment_run"].rpartition("/")[2] == run["name"].rpartition("/")[2]
    assert run["parentContexts"] == [experiment["name"]]
    assert run["metadata"]["_params"]["model"] == night.JOB["model"]
    assert run["metadata"]["_metrics"]["mood"] == 1.0
    assert {"mood_low", "cost_usd", "rows", "passed"} <= run["metadata"]["_metrics"].keys()


def change_prompt(dag):
    for one in dag.tasks:
        one.prompt = {**one.prompt, "template": BAD}


def test_the_night_runs_after_a_good_evaluation_which_costs_nothing_the_next_time_and_a_bad_prompt_stops_it(
    run_dag, night, sandbox, tmp_path
):
    dag_run, states = run_dag(night.dag)
    assert states == {"evaluate": "success", "night": "success"}
    found = dag_run.get_task_instance("evaluate").xcom_pull(task_ids="evaluate")
    assert (found["passed"], found["scores"]["mood"]["score"], found["requests"]) == (True, 1.0, 20)
    assert len(json.dumps(found)) < 2000, "an XCom is a manifest"
    answers = dag_run.get_task_instance("night").xcom_pull(task_ids="night")
    assert (answers["origins"]["cached"], answers["origins"]["fresh"]) == (20, 10)

    dag_run, states = run_dag(night.dag)
    assert dag_run.get_task_instance("evaluate").xcom_pull(task_ids="evaluate")["requests"] == 0
    assert len(sandbox.requests) == 30

    change_prompt(night.dag)
    dag_run, states = run_dag(night.dag)
    assert states == {"evaluate": "failed", "night": "upstream_failed"}
    assert len(sandbox.requests) == 50, "the golden set, and no row of the night"
    failed = dag_run.get_task_instance("evaluate").xcom_pull(task_ids="evaluate")
    assert [fault.partition(" is ")[0] for fault in failed["faults"]] == ["mood", "mood", "by_label"]
    text = Path(failed["text_uri"]).read_text()
    assert failed["wrong_count"] == text.count("\nRow {")
    assert "  mood       expected " in text
    page = shown_page(dag_run, "evaluate")
    assert f"<h1><bdi>evaluated_night · evaluate · {dag_run.run_id}</bdi></h1>" in page
    assert "Not passed" in page
    assert page.count("expected <bdi>") >= failed["wrong_count"]


@pytest.mark.full
def test_an_evaluation_that_does_not_pass_skips_the_night_or_only_says_so(run_dag, night):
    arguments = {"golden": night.evaluate.golden, "metrics": {"mood": "exact"}, "minimum": {"mood": 0.9}}
    job = night.JOB | {"prompt": night.JOB["prompt"] | {"template": BAD}}
    with DAG("policies", schedule=None) as dag:
        for policy in ("skip", "report"):
            evaluate = EvaluateInferenceOperator(task_id=policy, on_failure=policy, **arguments, **job)
            evaluate >> RunInferenceOperator(
                task_id=f"after_{policy}", **job | {"sink": f"{job['sink']}/{policy}"}
            )
    dag_run, states = run_dag(dag)
    assert states == {"skip": "skipped", "after_skip": "skipped", "report": "success", "after_report": "success"}
    assert dag_run.get_task_instance("skip").xcom_pull(task_ids="skip")["passed"] is False
    assert dag_run.get_task_instance("report").xcom_pull(task_ids="report")["passed"] is False


@pytest.mark.full
def test_the_tasks_of_one_side_follow_a_refused_evaluation_and_those_of_the_other_an_accepted_one(run_dag, night):
    arguments = {"golden": night.evaluate.golden, "metrics": {"mood": "exact"}, "minimum": {"mood": 0.9}}
    branch = {"on_failure": "branch", "refused_task_ids": ["tell_us"]}
    for prompt, followed, skipped in (
        (night.JOB["prompt"]["template"], "publish", "tell_us"),
        (BAD, "tell_us", "publish"),
    ):
        with DAG(f"branch_{followed}", schedule=None) as dag:
            job = night.JOB | {"prompt": night.JOB["prompt"] | {"template": prompt}}
            evaluate = EvaluateInferenceOperator(task_id="evaluate", **branch, **arguments, **job)
            evaluate >> [EmptyOperator(task_id="publish"), EmptyOperator(task_id="tell_us")]
        run, states = run_dag(dag)
        assert states == {"evaluate": "success", followed: "success", skipped: "skipped"}
        found = run.get_task_instance("evaluate").xcom_pull(task_ids="evaluate")
        assert found["passed"] == (followed == "publish")


def branching(night, *refused_task_ids, **arguments):
    evaluated = {"golden": night.evaluate.golden, "metrics": {"mood": "exact"}}
    job = night.JOB | {"prompt": night.JOB["prompt"] | {"template": BAD}}
    return EvaluateInferenceOperator(
        task_id="evaluate", on_failure="branch", refused_task_ids=refused_task_ids, **evaluated, **arguments, **job
    )


@pytest.mark.full
def test_each_instance_of_a_mapped_group_goes_on_with_the_side_of_its_own_evaluation(run_dag, night):
    with DAG("mapped_branch", schedule=None) as dag:

        @task
        def limits():
            return [{"mood": 0}, {"mood": 1}]

        @task_group
        def shop(minimum):
            publish, tell_us = EmptyOperator(task_id="publish"), EmptyOperator(task_id="tell_us")
            branching(night, "shop.tell_us", minimum=minimum) >> [publish, tell_us]

        shop.expand(minimum=limits())
    run, _ = run_dag(dag)
    states = {(ti.task_id, ti.map_index): str(ti.state) for ti in run.get_task_instances()}
    assert {name: state for name, state in states.items() if state != "success"} == {
        ("shop.tell_us", 0): "skipped",
        ("shop.publish", 1): "skipped",
    }


@pytest.mark.full
def test_a_mapped_evaluation_fails_if_it_cannot_skip_a_task_for_one_of_its_instances(run_dag, night, capfd):
    with DAG("mapped_alone", schedule=None) as dag:

        @task_group
        def shop(minimum):
            branching(night, "tell_us", minimum=minimum)

        shop.expand(minimum=[{"mood": 1}]) >> [EmptyOperator(task_id="publish"), EmptyOperator(task_id="tell_us")]
    _, states = run_dag(dag)
    assert states == {"shop.evaluate": "failed", "publish": "upstream_failed", "tell_us": "upstream_failed"}
    assert "cannot skip ['publish'], which are not in its mapped task group" in "".join(capfd.readouterr())


@pytest.mark.full
def test_a_task_of_the_other_side_is_skipped_again_when_it_alone_is_cleared(run_dag, night):
    with DAG("cleared", schedule=None) as dag:
        publish, tell_us = EmptyOperator(task_id="publish"), EmptyOperator(task_id="tell_us")
        branching(night, "tell_us", minimum={"mood": 1}) >> [publish, tell_us]
    run, states = run_dag(dag)
    assert states["publish"] == "skipped"
    with create_session() as session:
        run = session.merge(run)
        run.state, run.get_task_instance("publish", session=session).state = "running", None
        session.flush()
        run.dag = SerializedDagModel.get_dag(dag.dag_id, session=session)
        ready, _ = run.update_state(session=session)
        assert ready == []
        assert str(run.get_task_instance("publish", session=session).state) == "skipped"


@pytest.mark.full
def test_a_branch_to_a_task_that_is_not_downstream_fails_and_says_which_ones_are(run_dag, night):
    arguments = {"golden": night.evaluate.golden, "metrics": {"mood": "exact"}}
    with DAG("no_branch", schedule=None) as dag:
        evaluate = EvaluateInferenceOperator(
            task_id="evaluate", on_failure="branch", refused_task_ids=["tell_them"], **arguments, **night.JOB
        )
        evaluate >> EmptyOperator(task_id="tell_us")
    _, states = run_dag(dag)
    assert states == {"evaluate": "failed", "tell_us": "upstream_failed"}
    for wrong in ({"on_failure": "branch"}, {"refused_task_ids": ["tell_us"]}):
        with pytest.raises(JobSpecError, match="`refused_task_ids` and `on_failure` 'branch' are needed together"):
            EvaluateInferenceOperator(task_id="e", **wrong, **arguments, **night.JOB)


@pytest.mark.full
def test_templates_are_rendered_in_metrics_and_alternatives_but_not_those_of_rows(run_dag, night, sandbox):
    rubric = "{{ row.text }} {{ row.answer | tojson }}"
    judge = {"model": "gemini-2.5-{{ params.judge }}", "limits": {"budget_usd": "{{ params.budget }}"}}
    params = {"judge": "pro", "budget": 5}
    with DAG("rendered", schedule=None, params=params) as dag:
        EvaluateInferenceOperator(
            task_id="evaluate",
            golden=night.evaluate.golden,
            metrics={"good": {"type": "judge", "rubric": rubric, **judge}},
            **night.JOB,
        )
        CompareInferenceOperator(
            task_id="compare",
            other={
                "prompt": night.JOB["prompt"] | {"template": BAD},
                "generation": {"seed": "{{ params.budget }}"},
            },
            judge={"rubric": "{{ row.text }} {{ row.first }} {{ row.second }}", **judge},
            sample_size=3,
            **night.JOB,
        )
    run, states = run_dag(dag)
    assert states == {"evaluate": "success", "compare": "success"}
    asked = Counter(request.model for request in sandbox.requests)
    assert asked["gemini-2.5-pro"] >= 20, "the judge, by the parameter of the run"
    shown = RenderedTaskInstanceFields.get_templated_fields(run.get_task_instance("evaluate"))
    assert rubric in str(shown["metrics"])
    with pytest.raises(JobSpecError, match=r"Task 'e': `metrics\.good\.rubric`"):
        EvaluateInferenceOperator(
            task_id="e",
            golden=night.evaluate.golden,
            metrics={"good": {"type": "judge", "rubric": "{{ row.text }}", "model": "gemini-2.5-pro"}},
            **night.JOB,
        )


def test_two_prompts_are_compared_with_a_judge_of_the_same_connection(run_dag, night, sandbox):
    judge = {"rubric": "{{ row.text }} {{ row.first }} {{ row.second }}", "model": "gemini-2.5-pro"}
    other = {"prompt": night.JOB["prompt"] | {"template": BAD}}
    with DAG("compared", schedule=None) as dag:
        CompareInferenceOperator(task_id="compare", other=other, sample_size=25, judge=judge, **night.JOB)
    dag_run, states = run_dag(dag)
    assert states == {"compare": "success"}
    found = dag_run.get_task_instance("compare").xcom_pull(task_ids="compare")
    assert found["requests"] == len(sandbox.requests) == 50 + 2 * found["difference_count"]
    assert 0 < found["agreement"]["mood"]["score"] < 1
    assert Path(found["text_uri"]).read_text().startswith("Comparison of compared-compare-")
    assert "<h2>Different answers</h2>" in shown_page(dag_run, "compare")


def test_a_connection_with_another_key_for_the_same_variable_is_refused(connection, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_JUDGES", json.dumps(connection | {"password": "another"}))
    environment = {"GOOGLE_API_KEY": "k"}
    models = OtherModels("gemini-2.5-flash", "llmbeam_default", environment)
    assert models.complete_model("gemini-2.5-pro")["base_url"] == connection["host"]
    assert models.complete_model({"type": "openai", "name": "m"}) == {"type": "openai", "name": "m"}
    with pytest.raises(JobSpecError, match=r"'judges' has another key .* from `GOOGLE_API_KEY`"):
        models.complete_model("gemini-2.5-pro", "judges")
    judge = models.complete_model({"type": "openai", "name": "m", "api_key_env": "JUDGE_KEY"}, "judges")
    assert (judge["base_url"], environment["JUDGE_KEY"]) == (connection["host"], "another")
    moderation = {"model": {"type": "openai", "name": "m", "api_key_env": "GUARD_KEY"}, "conn_id": "judges"}
    guard = models.complete_guard({"moderation": moderation})["moderation"]["model"]
    assert (guard["base_url"], environment["GUARD_KEY"]) == (connection["host"], "another")
    assert models.complete_guard("{{ params.safety }}") == "{{ params.safety }}"
    assert models.complete_guard({"moderation": None}) == {"moderation": None}
    (stage,) = models.complete_stages({"stages": [{"model": "gemini-2.5-flash-lite"}]})["stages"]
    assert stage["model"]["base_url"] == connection["host"]
    assert models.complete_stages("{{ params.cascade }}") == "{{ params.cascade }}"


def test_invalid_literal_values_are_refused_when_the_dag_is_parsed(night):
    for changes, message in (
        ({"minimum": {"moood": 1}}, r"Task 'e': `minimum\.moood`: there is no such metric; did you mean `mood`\?"),
        ({"metrics": {"mood": "exactly"}}, r"Task 'e': `metrics\.mood\.type`"),
        ({"max_drop": 2}, r"Task 'e': `max_drop`"),
    ):
        arguments = {"golden": night.evaluate.golden, "metrics": {"mood": "exact"}} | changes
        with pytest.raises(JobSpecError, match=message):
            EvaluateInferenceOperator(task_id="e", **arguments, **night.JOB)
    with pytest.raises(JobSpecError, match=r"Task 'c': `other\.prompt\.template`"):
        CompareInferenceOperator(task_id="c", other={"prompt": "no column"}, **night.JOB)
    EvaluateInferenceOperator(
        task_id="e", golden="{{ params.golden }}", metrics={"mood": "exact"}, minimum="{{ params.m }}", **night.JOB
    )
