"""A guard model before the requests of a job, and after its answers."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from llmbeam_sandbox import Fault
from llmbeam_sandbox.models.answers import prompt_sha256
from waiting import until

from airflow_provider_llmbeam.engine.engine import Engine
from airflow_provider_llmbeam.exceptions import (
    BudgetExceededError,
    JobCancelledError,
    JobSpecError,
    NothingAnsweredError,
)
from airflow_provider_llmbeam.pipeline.batch_inference import decide
from airflow_provider_llmbeam.pipeline.batch_inference.run import PILOT_ROWS, BatchInference
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.measure.estimate.run import make_estimate
from airflow_provider_llmbeam.spec import JobSpec
from tests.pipeline.conftest import read_lines

GUARD = "meta-llama/Llama-Guard-3-8B"
METHOD = "openai.chatCompletions"
#: The beginning of all questions to the guard, which tells them from the prompts of the job.
QUESTION = "Judge this:"


def text(number: int) -> str:
    """Returns an unsafe text for every tenth row, and for every eighth of the others one with an unsafe answer."""
    return f"row {number} {'unsafe_S1' if number % 10 == 0 else 'tempts_S6' if number % 8 == 0 else ''}"


#: Two rows have the same prompt.
ROWS = [*({"id": number, "text": text(number)} for number in range(40)), {"id": 40, "text": text(1)}]
UNSAFE_PROMPTS, UNSAFE_ANSWERS = {0, 10, 20, 30}, {8, 16, 24, 32}


def asked(sandbox) -> Counter[str]:
    """Answered requests to the guard and to the model of the job."""
    answered = (record for record in sandbox.requests if record.http_status == 200)
    return Counter("guard" if record.model == GUARD else "job" for record in answered)


def distinct(sandbox) -> int:
    return len({record.prompt_sha256 for record in sandbox.requests if record.model == GUARD})


@pytest.fixture
def moderated(openai_job, sandbox):
    """A job with a guard; `changes` are fields of its moderation."""

    def make(job=None, **changes):
        guard = {"type": "openai", "name": GUARD, "base_url": sandbox.openai_url}
        moderation = {"model": guard, "template": f"{QUESTION} {{text}}", **changes}
        openai_job.spec |= {"safety": {"moderation": moderation}, **(job or {})}
        return openai_job

    return make


def test_each_distinct_text_is_judged_once_and_unsafe_rows_are_in_the_dead_letter(moderated, sandbox):
    job = moderated()
    ended = job.run(ROWS)
    categories = {row["id"]: row["llmbeam_error"]["category"] for row in ended.dead_letter}
    assert categories == dict.fromkeys(UNSAFE_PROMPTS, "S1") | dict.fromkeys(UNSAFE_ANSWERS, "S6")
    assert ended.kinds == Counter(moderated=8)
    assert ended.report["dead_letter_by_category"] == {"moderated": {"S1": 4, "S6": 4}}
    assert asked(sandbox) == Counter(job=36, guard=40 + 36)
    assert distinct(sandbox) == 76
    guard = ended.report["moderation"]
    assert guard["requests_sent"] == 76
    assert (ended.report["requests"]["sent"], ended.report["rows"]["dead_letter"]) == (36, 8)
    assert ended.report["tokens"]["input"] == sum(
        record.input_tokens for record in sandbox.requests if record.model != GUARD
    )
    assert guard["input"] == {
        "texts": 40,
        "safe": 37,
        "unsafe": 4,
        "unreadable": 0,
        "unjudged": 0,
        "actions": {"fail": 4},
        "categories": {"S1": 4},
    }
    assert (guard["output"]["texts"], guard["output"]["actions"]) == (36, {"fail": 4})
    assert "Moderation" in Path(ended.manifest["report_html_uri"]).read_text()

    again = job.run()
    assert asked(sandbox) == Counter(job=36, guard=76), "verdicts and answers are in the journal"
    assert (again.report["moderation"]["requests_sent"], again.kinds) == (0, Counter(moderated=8))


def test_flagged_rows_are_published_with_the_categories_in_columns(moderated, sandbox):
    job = moderated(action="flag", categories={"S6": "allow"})
    job.spec["sink"] |= {"format": "parquet"}
    ended = job.run(ROWS)
    flags = {
        row["id"]: (row["llmbeam_moderation_input"], row["llmbeam_moderation_output"]) for row in ended.answers
    }
    # The answer to an unsafe prompt repeats its word, and is unsafe as well.
    assert flags == {row["id"]: (("S1", "S1") if row["id"] in UNSAFE_PROMPTS else (None, None)) for row in ROWS}
    assert ended.report["moderation"]["output"]["actions"] == {"allow": 4, "flag": 4}
    assert set(ended.answers[0]) == {"id", "answer", *JobSpec.parse(job.spec).detail_columns}
    assert asked(sandbox) == Counter(job=40, guard=80)


def test_the_replacement_is_published_instead_of_unsafe_answers_and_of_answers_to_unsafe_prompts(
    moderated, sandbox
):
    ended = moderated(action="replace", replacement="Withheld.").run(ROWS)
    replaced = {row["id"]: row for row in ended.answers if row["answer"] == "Withheld."}
    assert replaced.keys() == UNSAFE_PROMPTS | UNSAFE_ANSWERS
    assert {row["llmbeam_finish_reason"] for row in replaced.values()} == {"moderated"}
    assert {replaced[0]["llmbeam_moderation_input"], replaced[8]["llmbeam_moderation_output"]} == {"S1", "S6"}
    assert ended.origins == Counter(fresh=36, replaced=4, duplicate=1)
    assert asked(sandbox) == Counter(job=36, guard=76), "an unsafe prompt is not sent"


def test_any_model_that_answers_with_json_is_a_guard(moderated):
    ended = moderated(verdict="json", on=["output"]).run([*ROWS[:9], {"id": 50, "text": "unreadable_verdict"}])
    categories = {row["id"]: row["llmbeam_error"]["category"] for row in ended.dead_letter}
    assert categories == {0: "S1", 8: "S6", 50: "unreadable"}
    assert ended.report["moderation"]["input"] is None


def test_shieldgemma_is_a_guard_and_what_it_found_is_in_the_trace(moderated, sandbox):
    guard = {"type": "openai", "name": "google/shieldgemma-9b", "base_url": sandbox.openai_url}
    policy = '"No Harassment": The text shall not insult a person.'
    job = moderated(model=guard, verdict="shield_gemma", system=policy, template="{text}", action="flag")
    job.spec["traces"] = {"sample_ratio": 0}
    ended = job.run([*ROWS[:9], {"id": 50, "text": "unreadable_verdict"}])
    assert {row["id"]: row["llmbeam_moderation_input"] for row in ended.answers}[0] == "unsafe"
    assert [row["llmbeam_error"]["category"] for row in ended.dead_letter] == ["unreadable"]
    traced = [(row["reason"], row["labels"]) for row in ended.report["traced_rows"]]
    assert ("failed", {"moderation": "unreadable"}) in traced
    assert ("flagged", {"moderation.input": "unsafe", "moderation.output": "unsafe"}) in traced
    assert ("flagged", {"moderation.output": "unsafe"}) in traced
    assert len(traced) == 3


def test_rows_that_the_guard_could_not_judge_fail_and_the_next_run_asks_for_them_alone(moderated, sandbox):
    job = moderated(limits={"max_attempts": 1})
    sandbox.faults.when(METHOD, f"{QUESTION} Say it: row 7 ", Fault(kind="error", http_status=500))
    sandbox.faults.when(METHOD, f"{QUESTION} Say it row 9 ", Fault(kind="error", http_status=500))
    ended = job.run(ROWS)
    errors = {row["id"]: row["llmbeam_error"] for row in ended.dead_letter if row["id"] in (7, 9)}
    assert {error["kind"] for error in errors.values()} == {"server_error"}
    assert errors[7]["message"].startswith(f"the guard model '{GUARD}' gave no verdict on the prompt: ")
    assert errors[9]["message"].startswith(f"the guard model '{GUARD}' gave no verdict on the answer: ")
    assert (errors[7]["attempts"], errors[9]["attempts"]) == (0, 1)
    assert ended.report["moderation"]["output"]["unjudged"] == 1
    sandbox.faults.clear()
    before = asked(sandbox)
    again = job.run()
    assert asked(sandbox) - before == Counter(job=1, guard=3), "row 7 and its answer, and the answer to row 9"
    assert again.kinds == Counter(moderated=8)


def test_no_answer_is_published_while_the_guard_is_down(moderated, sandbox):
    job = moderated(on=["output"], limits={"max_attempts": 1})
    sandbox.faults.when(METHOD, QUESTION, Fault(kind="error", http_status=500))
    with pytest.raises(NothingAnsweredError, match=r"gave no verdict on the answer") as caught:
        job.run(ROWS[:4])
    assert caught.value.retryable
    assert not (job.out / "answers-00000-of-00001.jsonl").exists()


@pytest.mark.full
def test_a_stopped_job_asks_the_guard_for_the_rest_alone(moderated, sandbox, monkeypatch):
    monkeypatch.setattr("airflow_provider_llmbeam.pipeline.engine_thread.STOP_POLL_SECONDS", 0.0)
    stopped, stop = threading.Event(), Engine.stop

    def stop_and_tell(engine: Engine, error: Exception) -> None:
        stop(engine, error)
        stopped.set()

    monkeypatch.setattr(Engine, "stop", stop_and_tell)
    job = moderated(limits={"max_in_flight": 8})
    job.write(ROWS)
    spec = JobSpec.parse(job.spec)
    hold = sandbox.faults.hold(METHOD, QUESTION, after=20)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, spec)
        until(lambda: hold.waiting, "requests to the guard are held")
        Path(spec.paths.stop_uri).touch()
        until(stopped.is_set, "the engine is told to end")
        hold.release()
        with pytest.raises(JobCancelledError):
            running.result()
    assert 20 <= asked(sandbox)["guard"] < 40
    job.run()
    assert asked(sandbox) == Counter(job=36, guard=76)


def test_an_audit_has_the_requests_to_the_guard_with_the_rows_whose_texts_it_judged(moderated, sandbox, tmp_path):
    job = moderated()
    job.spec["safety"] |= {"audit": {"uri": str(tmp_path / "audit")}}
    job.run(ROWS)
    records = [record for path in (tmp_path / "audit").rglob("*.jsonl") for record in read_lines(path)]
    assert Counter("guard" if record["requested_model"] == GUARD else "job" for record in records) == asked(
        sandbox
    )
    assert all(record["row_key_hashes"] for record in records)
    assert len({each for record in records for each in record["row_key_hashes"]}) == len(ROWS)


def test_the_guard_has_a_budget_of_its_own(moderated, sandbox):
    price = {"input_usd_per_million_tokens": 1e6, "output_usd_per_million_tokens": 1e6}
    job = moderated(limits={"budget_usd": 50, "price": price, "max_in_flight": 4})
    with pytest.raises(BudgetExceededError):
        job.run(ROWS)
    assert asked(sandbox)["guard"] < 40


PRICE = {"input_usd_per_million_tokens": 1.0, "output_usd_per_million_tokens": 2.0}


def test_an_estimate_has_the_guard_in_a_block_of_its_own_and_sends_no_unsafe_prompt(moderated, sandbox):
    limits = {"price": PRICE, "max_dead_letter_ratio": 1.0}
    job = moderated(job={"limits": limits}, limits={"price": PRICE, "budget_usd": 1e-6})
    job.write(ROWS)
    assert make_estimate(JobSpec.parse(job.spec), sample_size=0).exceeds_budget
    job = moderated(job={"limits": limits}, limits={"price": PRICE})
    found = make_estimate(JobSpec.parse(job.spec), sample_size=16)
    sent = asked(sandbox)
    assert sent["job"] == found.sample_usage.requests < 16
    assert sent["guard"] == 16 + sent["job"]
    unsafe = {prompt_sha256(f"Say it: {text(number)}") for number in UNSAFE_PROMPTS}
    assert unsafe.isdisjoint(record.prompt_sha256 for record in sandbox.requests if record.model != GUARD)
    guard = found.guard
    assert guard is not None
    assert (guard.input.requests, guard.sample["input.requests.texts"]) == (24, 16)
    assert found.total_cost_usd == pytest.approx(found.cost_usd + guard.cost_usd, abs=1e-6)
    assert not found.exceeds_budget
    assert any(line.startswith("Guard     24 prompts + ") for line in found.lines())

    ended = job.run().report["moderation"]
    assert ended["input"]["texts"] == 24
    assert ended["output"]["texts"] == pytest.approx(guard.output.requests, abs=4)
    assert ended["cost_usd"] == pytest.approx(guard.cost_usd, rel=0.25)
    assert asked(sandbox) == Counter(job=36, guard=76), "nothing is judged twice"
    again = make_estimate(JobSpec.parse(job.spec), sample_size=0)
    assert (again.requests, again.failed) == (0, 4)
    assert (again.guard.input.requests, again.guard.output.requests, again.guard.sample) == (0, 0, {})


@pytest.mark.full
def test_request_files_of_batch_inference_have_no_unsafe_prompt_and_its_answers_are_judged(
    moderated, job, sandbox, monkeypatch
):
    monkeypatch.setattr(decide, "MIN_POLL_SECONDS", 0.05)
    monkeypatch.setattr(decide, "MAX_POLL_SECONDS", 0.05)
    monkeypatch.setattr(BatchInference, "clean_up", lambda _: None)  # so that the files are still there
    job.spec |= {"safety": moderated().spec["safety"], "inference": {"mode": "batch"}}
    rows = [{"id": number, "text": text(number)} for number in range(PILOT_ROWS + 48)]
    unsafe = {row["id"] for row in rows if "unsafe" in row["text"]}
    ended = job.run(rows)
    lines = [line for path in job.directory.rglob("requests-*.jsonl") for line in path.read_text().splitlines()]
    assert 0 < len(lines) < len(rows) - len(unsafe)
    assert not any("unsafe" in line for line in lines)
    categories = {row["id"]: row["llmbeam_error"]["category"] for row in ended.dead_letter}
    tempting = {row["id"]: "S6" for row in rows if "tempts" in row["text"]}
    assert categories == dict.fromkeys(unsafe, "S1") | tempting
    assert ended.origins["batch"] == len(lines) - len([line for line in lines if "tempts" in line])
    guard = ended.report["moderation"]
    assert guard["input"]["texts"] == len(rows)
    assert guard["output"]["texts"] == len(rows) - len(unsafe)
    assert guard["requests_sent"] == asked(sandbox)["guard"] == 2 * len(rows) - len(unsafe)
    assert guard["input"]["actions"] == {"fail": len(unsafe)}


def test_duplicate_keys_and_missing_columns_are_found_before_the_guard_is_asked(moderated, sandbox):
    with pytest.raises(JobSpecError, match="belongs to several rows"):
        moderated().run([ROWS[0], ROWS[0] | {"text": "other"}])
    job = moderated(job={"sink": {"uri": str(moderated().out), "passthrough": ["txt"]}})
    with pytest.raises(JobSpecError, match="no row has column 'txt'"):
        job.run(ROWS)
    assert not len(sandbox.requests)


def test_prompts_to_embed_are_moderated_before_they_are_sent(moderated, sandbox):
    job = moderated(on=["input"], job={"task": "embed", "prompt": {"template": "{{ row.text }}"}})
    ended = job.run(ROWS)
    assert {row["id"] for row in ended.dead_letter} == UNSAFE_PROMPTS
    assert len(ended.answers) == 37
