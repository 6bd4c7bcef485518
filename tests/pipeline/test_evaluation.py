"""Evaluations and comparisons against the sandbox: scores, gate, and what is paid again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from llmbeam_sandbox import Fault
from llmbeam_sandbox.models.answers import answer_text

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError, PermanentFailureError
from airflow_provider_llmbeam.pipeline.__main__ import main
from airflow_provider_llmbeam.pipeline.measure import rows as reading
from airflow_provider_llmbeam.pipeline.measure.compare import compare
from airflow_provider_llmbeam.pipeline.measure.evaluate import evaluate
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.evaluation import Comparison, Evaluation
from airflow_provider_llmbeam.spec.model.server import with_base_urls
from tests.processes import until_job

GENERATE = "gemini.generateContent"
GOOD = {
    "template": "What is the mood of this review?\n\n{{ row.text }}",
    "output_schema": {
        "type": "object",
        "properties": {"mood": {"type": "string", "enum": ["good", "bad", "mixed"]}},
        "required": ["mood"],
    },
}
BAD = GOOD | {"template": "Mood? {{ row.text }}"}
JUDGE = {
    "rubric": "Review: {{ row.text }}\nIs this its mood?\n{{ row.answer | tojson }}",
    "model": {"type": "gemini", "name": "gemini-2.5-pro"},
}
PAIRS = JUDGE | {"rubric": "{{ row.text }}\nA: {{ row.first | tojson }}\nB: {{ row.second | tojson }}"}


def reviews(count=40):
    return [{"id": number, "text": f"review number {number}"} for number in range(count)]


@pytest.fixture
def spec(job, sandbox, monkeypatch):
    """A job whose state is not below its sink; the judges, which name no address, are in the sandbox as well."""
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", sandbox.gemini_url)
    job.write(reviews())
    job.spec |= {"prompt": GOOD, "state_uri": f"{job.directory}/state"}
    return JobSpec.parse(job.spec)


@pytest.fixture
def golden():
    """A golden set that the good prompt answers as expected: the sandbox answers by a hash of the prompt."""
    rows = []
    for row in reviews():
        prompt = GOOD["template"].replace("{{ row.text }}", row["text"])
        answer = json.loads(answer_text(prompt, model="gemini-2.5-flash", schema=GOOD["output_schema"]).text)
        rows.append(row | {"expected_mood": answer["mood"]})
    return {"type": "rows", "key": "id", "rows": rows}


def of(golden, metrics=None, **others):
    evaluation = Evaluation.parse({"golden": golden, "metrics": metrics or {"mood": "exact"}} | others)
    return with_base_urls(evaluation, os.environ)


def comparison_of(**parts):
    return with_base_urls(Comparison.parse(parts), os.environ)


def with_prompt(spec, prompt):
    return JobSpec.parse(spec.model_dump(mode="json") | {"prompt": prompt})


def test_a_good_prompt_passes_and_a_bad_one_fails_with_its_cases(spec, golden):
    metrics = {"mood": "exact", "f1": {"type": "label_f1", "field": "mood", "expected": "expected_mood"}}
    evaluation = of(golden, metrics, minimum={"mood": 0.9, "f1": 0.9}, max_cases=5)
    good = evaluate(spec, evaluation)
    assert (good.passed, good.scores["mood"].score, good.scores["f1"].score, good.wrong) == (True, 1, 1, [])
    bad = evaluate(with_prompt(spec, BAD), evaluation)
    assert not bad.passed
    assert [fault.split()[0] for fault in bad.faults] == ["mood", "f1"]
    assert bad.scores["mood"].low < bad.scores["mood"].score < bad.scores["mood"].high < 0.9
    assert set(bad.scores["f1"].labels) == {"good", "bad", "mixed"}
    assert len(bad.wrong) == 5 < bad.wrong_count
    case = bad.wrong[0]
    assert case.answer["mood"] != case.expected["mood"]
    text = Path(spec.paths.home_uri, "evaluation.txt").read_text()
    assert "NOT passed" in text
    assert f"Row {case.key}\n  answered   {json.dumps(case.answer)}\n  mood       expected" in text
    saved = json.loads(Path(spec.paths.home_uri, "evaluation.json").read_text())
    assert saved["faults"] == bad.faults


def test_an_unchanged_evaluation_sends_nothing_and_has_the_same_scores(spec, golden, sandbox):
    evaluation = of(golden, {"mood": "exact", "grade": JUDGE | {"type": "judge"}})
    first = evaluate(spec, evaluation)
    assert first.requests == len(sandbox.requests) == 80
    second = evaluate(spec, evaluation)
    assert (second.requests, len(sandbox.requests)) == (0, 80)
    assert second.scores == first.scores
    assert (second.cost_usd, second.judge_cost_usd) == (0, 0)
    assert first.cost_usd > 0 < first.judge_cost_usd
    assert all(row.ended_at and row.input_tokens for row in first.traced)
    assert {(row.ended_at, row.input_tokens, row.attempts) for row in second.traced} == {(0, 0, 0)}
    assert second.usd_per_thousand_rows == first.usd_per_thousand_rows > 0


def test_with_a_cache_the_night_reuses_the_answers_of_the_golden_set(job, spec, golden, sandbox):
    job.spec |= {"cache": {"scope": "moods"}}
    evaluate(JobSpec.parse(job.spec | {"name": "evaluation"}), of(golden))
    ended = job.run(reviews(50))
    assert (ended.origins["cached"], ended.origins["fresh"]) == (40, 10)
    assert set(sandbox.requests.paid().values()) == {1}


def test_after_a_failure_a_retry_sends_only_the_rest(spec, golden, sandbox):
    spec = spec.model_copy(update={"limits": spec.limits.model_copy(update={"max_attempts": 1})})
    sandbox.faults.queue(GENERATE, *[Fault(kind="error", http_status=500)] * 3)
    with pytest.raises(JobFailedError, match=r"3 of 40 prompts have no answer \(3 server_error\)"):
        evaluate(spec, of(golden))
    assert evaluate(spec, of(golden)).requests == 3
    assert set(sandbox.requests.paid().values()) == {1}


@pytest.mark.full
def test_after_a_kill_a_retry_sends_only_what_was_not_answered(spec, golden, sandbox, tmp_path, monkeypatch):
    monkeypatch.delenv("LLMBEAM_TESTS_FORK_SERVER", raising=False)  # whose client would be killed
    job, evaluation = tmp_path / "job.json", tmp_path / "evaluation.json"
    job.write_text(spec.model_dump_json())
    evaluation.write_text(of(golden).model_dump_json())
    command = [
        "-m",
        "airflow_provider_llmbeam.pipeline",
        f"--spec={job}",
        "--step=evaluate",
        f"--input={evaluation}",
    ]
    hold = sandbox.faults.hold(GENERATE, "review", after=30)
    with subprocess.Popen([sys.executable, *command]) as started:
        until_job(started, lambda: hold.waiting == 10 and recorded(spec) == 30)
        started.kill()
    hold.release()
    assert evaluate(spec, of(golden)).requests == 10


def recorded(spec):
    """Number of answers in the journal."""
    return sum(len(path.read_text().splitlines()) for path in Path(spec.paths.journal_uri).rglob("*.jsonl"))


def test_a_refused_answer_is_wrong_and_shown_with_its_reason(spec, golden, sandbox):
    sandbox.faults.queue(GENERATE, Fault(kind="error", http_status=400, message="no"))
    found = evaluate(spec, of(golden, {"mood": "exact", "json": "valid_json"}))
    assert (found.unanswered, found.scores["mood"].score, found.scores["json"].score) == (1, 39 / 40, 39 / 40)
    assert found.wrong[0].failure.startswith("bad_request: no")


@pytest.mark.parametrize("metric", ["exact", "label_f1"])
def test_an_answer_with_half_of_a_surrogate_pair_is_reported(echo_job, metric):
    """A model may write it as an escape."""
    rows = [{"id": 1, "text": r'{"mood":"\ud83d"}', "expected_mood": "good"}]
    schema = {"type": "object", "properties": {"mood": {"type": "string"}}}
    spec = JobSpec.parse(echo_job.spec | {"prompt": {"template": "{{ row.text }}", "output_schema": schema}})
    found = evaluate(spec, of({"type": "rows", "key": "id", "rows": rows}, {"mood": metric}))
    assert [case.answer for case in found.wrong] == [{"mood": "\ufffd"}]
    echo_job.write(rows)
    other = {"prompt": {"template": '{{ row.text and \'{"mood": "good"}\' }}', "output_schema": schema}}
    compared = compare(spec, comparison_of(other=other, sample_size=1))
    assert [case.job for case in compared.differences] == [{"mood": "\ufffd"}]


NULLABLE = {"type": ["object", "null"], "properties": {"mood": {"type": ["string", "null"]}}}


def of_echo(job, schema, text, expected, metrics):
    """Evaluates an answer, which is the text of the row."""
    rows = [{"id": 1, "text": text, "expected_mood": expected}]
    prompt = {"template": "{{ row.text }}"} | ({} if schema is None else {"output_schema": schema})
    spec = JobSpec.parse(job.spec | {"prompt": prompt})
    return evaluate(spec, of({"type": "rows", "key": "id", "rows": rows}, metrics))


def test_an_answer_that_is_null_is_evaluated_as_null_and_the_text_null_as_a_text(echo_job):
    metrics = {
        "mood": "exact",
        "label": {"type": "label_f1", "field": "mood", "expected": "expected_mood"},
        "json": {"type": "valid_json", "json_schema": NULLABLE},
    }
    null = of_echo(echo_job, NULLABLE, " null\n", None, metrics)
    assert {name: score.score for name, score in null.scores.items()} == dict.fromkeys(metrics, 1)
    wrong = of_echo(echo_job, NULLABLE, " null\n", "good", metrics)
    assert [case.answer for case in wrong.wrong] == [None]
    text = of_echo(echo_job, None, "null", "good", {"mood": "exact"})
    assert [case.answer for case in text.wrong] == ["null"]


@pytest.mark.parametrize("expected", [None, "null"])
def test_null_in_a_field_equals_the_text_of_it_as_a_csv_file_has_it(echo_job, expected):
    found = of_echo(echo_job, NULLABLE, '{"mood": null}', expected, {"mood": "exact"})
    assert found.scores["mood"].score == 1


def test_a_score_that_drops_below_the_last_accepted_one_is_refused_on_the_same_golden_set_only(spec, golden):
    assert evaluate(spec, of(golden, max_drop=0.0)).accepted_at is None
    accepted = json.loads(Path(spec.paths.home_uri, "accepted.json").read_text())
    bad = evaluate(with_prompt(spec, BAD), of(golden, max_drop=0.05))
    assert bad.accepted_at == accepted["made_at"]
    assert "the last accepted evaluation had 1.000" in bad.faults[0]
    assert json.loads(Path(spec.paths.home_uri, "accepted.json").read_text()) == accepted, "a refused one is not"
    smaller = golden | {"rows": golden["rows"][:20]}
    assert evaluate(with_prompt(spec, BAD), of(smaller, max_drop=0.0)).passed


def test_a_python_function_scores_answers(spec, golden, tmp_path, monkeypatch):
    (tmp_path / "scoring_of_this_test.py").write_text(
        "def brief(row, answer):\n    return len(answer['mood']) <= 4\n\ndef wrong(row, answer):\n    return 2\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = evaluate(spec, of(golden, {"brief": {"type": "python", "function": "scoring_of_this_test:brief"}}))
    moods = [row["expected_mood"] for row in golden["rows"]]
    assert found.scores["brief"].score == sum(len(mood) <= 4 for mood in moods) / 40
    with pytest.raises(JobFailedError, match="returned 2; expected a bool, or a number from 0 to 1"):
        evaluate(spec, of(golden, {"wrong": {"type": "python", "function": "scoring_of_this_test:wrong"}}))
    sys.modules.pop("scoring_of_this_test")


def test_a_golden_set_that_is_too_large_is_refused_before_anything_is_sent(spec, golden, sandbox, monkeypatch):
    rows = [{"id": number, "text": "a", "expected_mood": "good"} for number in range(5001)]
    with pytest.raises(JobSpecError, match=r"has more than 5,000 rows.*Nothing was sent or billed"):
        evaluate(spec, of(golden | {"rows": rows}))
    path = Path(spec.state_uri, "golden.jsonl")
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(reading, "MAX_BYTES", 64 * 2**10)
    with pytest.raises(JobSpecError, match=r"has more than 64 KiB.*Nothing was sent or billed"):
        evaluate(spec, of({"uri": str(path), "key": "id"}))
    assert len(sandbox.requests) == 0


def test_a_judge_without_any_verdict_fails_the_evaluation(spec, golden, sandbox):
    judge = {"type": "judge", "generation": {"max_output_tokens": 1}}
    with pytest.raises(PermanentFailureError, match="gave no verdict on 40 of 40 answers"):
        evaluate(spec, of(golden, {"grade": JUDGE | judge}))


@pytest.mark.parametrize(("shown", "judged"), [("row.id < 19", False), ("row.id < 20", True)])
def test_the_verdicts_on_a_minority_of_the_answers_are_no_score(spec, golden, shown, judged):
    rubric = f"{{% if {shown} %}}{{{{ row.answer }}}}{{% else %}}{{{{ row.answer.lacks }}}}{{% endif %}}"
    evaluation = of(golden, {"grade": JUDGE | {"type": "judge", "rubric": rubric}})
    if judged:
        assert evaluate(spec, evaluation).scores["grade"].rows == 20
        return
    with pytest.raises(
        PermanentFailureError, match=r"no verdict on 21 of 40 answers, so there is no score: .*lacks"
    ):
        evaluate(spec, evaluation)


def test_the_command_line_evaluates_and_says_by_its_exit_code_whether_the_scores_are_accepted(
    spec, golden, tmp_path, capsys
):
    files = {name: tmp_path / f"{name}.json" for name in ("job", "evaluation", "result")}

    def exit_code(job, **changes):
        files["job"].write_text(job.model_dump_json())
        files["evaluation"].write_text(of(golden, minimum={"mood": 0.9}, **changes).model_dump_json())
        return main(["--spec", str(files["job"]), "--step=evaluate", "--input", str(files["evaluation"])])

    bad = with_prompt(spec, BAD)
    assert [exit_code(spec), exit_code(bad)] == [0, 1]
    assert [exit_code(bad, on_failure=policy) for policy in ("skip", "report")] == [99, 0]
    printed = capsys.readouterr().out
    assert '"passed": true' in printed
    assert "html_gzip" not in printed, "the page is for Airflow"
    files["evaluation"].write_text("{")
    assert main(["--spec", str(files["job"]), "--step=evaluate", "--input", str(files["evaluation"])]) == 2


def test_two_prompts_are_compared_on_the_same_rows_tonight_and_tomorrow(job, spec, sandbox):
    comparison = comparison_of(other={"prompt": BAD}, sample_size=30, judge=PAIRS)
    first = compare(spec, comparison)
    differing = first.difference_count
    assert first.requests == len(sandbox.requests) == 60 + 2 * differing
    assert first.agreement["mood"].score == first.agreement["answer"].score == (30 - differing) / 30
    found = first.verdicts
    assert found.job + found.other + found.tie + found.inconsistent == differing == 30 - found.equal
    assert first.job.usd_per_thousand_rows > first.other.usd_per_thousand_rows > 0
    assert first.job.latency_p95_seconds >= first.job.latency_p50_seconds > 0
    job.write(reviews()[::-1])  # another order, and the same rows
    second = compare(spec, comparison)
    assert (second.requests, second.differences) == (0, first.differences)
    text = Path(spec.paths.home_uri, "comparison.txt").read_text()
    assert f"Row {first.differences[0].key}\n  job        " in text
    job.write([*reviews(), {"id": 100, "text": "one more"}])
    assert compare(spec, comparison).requests <= 4, "at most one row of the sample is another"


def test_verdicts_on_a_minority_of_the_pairs_are_none_if_one_order_of_each_is_missing(echo_job, sandbox, spec):
    rubric = "{{ row.first }}{{ row.second }}{% if row.first == 'good' %}{{ row.lacks }}{% endif %}"
    echo_job.write(reviews(4))
    job = JobSpec.parse(echo_job.spec | {"prompt": {"template": "{{ row.text and 'good' }}"}})
    other = {"prompt": {"template": "{{ row.text and 'bad' }}"}}
    comparison = comparison_of(other=other, judge=JUDGE | {"rubric": rubric})
    with pytest.raises(PermanentFailureError, match=r"no verdict on 4 of 4 pairs of answers, so there is no"):
        compare(job, comparison)


def test_a_number_that_is_written_in_another_way_is_no_difference(echo_job):
    schema = {"type": "object", "properties": {"stars": {"type": "number"}}}
    prompts = [
        {"template": f"{{{{ row.text and '{{\"stars\": {stars}}}' }}}}", "output_schema": schema}
        for stars in ("3", "3.0")
    ]
    echo_job.write(reviews(3))
    spec = JobSpec.parse(echo_job.spec | {"prompt": prompts[0]})
    compared = compare(spec, Comparison.parse({"other": {"prompt": prompts[1]}}))
    assert (compared.both_answered, compared.difference_count) == (3, 0)
    assert {name: score.score for name, score in compared.agreement.items()} == {"answer": 1, "stars": 1}


def test_a_field_that_is_called_answer_is_not_the_whole_answer(echo_job):
    schema = {"type": "object", "properties": {"answer": {"type": "string"}, "sure": {"type": "boolean"}}}
    prompts = [
        {"template": f'{{{{ row.text and "" }}}}{{"answer": "yes", "sure": {sure}}}', "output_schema": schema}
        for sure in ("true", "false")
    ]
    echo_job.write(reviews(3))
    compared = compare(
        JobSpec.parse(echo_job.spec | {"prompt": prompts[0]}), Comparison.parse({"other": {"prompt": prompts[1]}})
    )
    agreement = {name: score.score for name, score in compared.agreement.items()}
    assert (compared.difference_count, agreement) == (3, {"answer": 0, "answer.answer": 1, "sure": 0})


def test_the_price_of_the_job_is_not_that_of_another_model(spec, tmp_path):
    price = {"input_usd_per_million_tokens": 1000, "output_usd_per_million_tokens": 0}
    spec = JobSpec.parse(spec.model_dump(mode="json") | {"limits": {"price": price}})
    other = {"model": spec.model.model_dump() | {"name": "gemini-2.5-flash-lite"}}
    job, comparison, result = (tmp_path / name for name in ("job.json", "comparison.json", "result.json"))
    job.write_text(spec.model_dump_json())
    comparison.write_text(json.dumps({"other": other, "sample_size": 10}))
    assert main([f"--spec={job}", "--step=compare", f"--input={comparison}", f"--result={result}"]) == 0
    found = json.loads(result.read_text())["result"]
    assert found["job"]["usd_per_thousand_rows"] > 1000 * found["other"]["usd_per_thousand_rows"]
