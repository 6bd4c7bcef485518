"""Cheaper models answer first, and the expensive one only what they are not sure of."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from llmbeam_sandbox import Fault, Latency, ModelSettings, Sandbox
from llmbeam_sandbox.billing.tokens import TokenPrice, TokenPrices
from llmbeam_sandbox.models.answers import answer_text
from llmbeam_sandbox.models.skill import RIGHT, Skill
from waiting import until

from airflow_provider_llmbeam.exceptions import BudgetExceededError, JobSpecError, LLMBeamError
from airflow_provider_llmbeam.pipeline.cascade.run import begin_cascade
from airflow_provider_llmbeam.pipeline.cascade.state import read_calibration
from airflow_provider_llmbeam.pipeline.cascade.trial import CascadeTrial
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.measure.forget.run import forget
from airflow_provider_llmbeam.pipeline.steps import run_step
from airflow_provider_llmbeam.providers.errors import BatchPendingError
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.protocol.steps import CascadeTable, EstimateSample
from airflow_provider_llmbeam.spec.safety import RowsToForget
from tests.pipeline.conftest import Job
from tests.pipeline.test_no_answer_is_paid_for_twice import content, start_command

#: A model with batch inference.
BATCHED = "gemini-2.5-pro"
METHOD = "openai.chatCompletions"
SCHEMA = {
    "type": "object",
    "properties": {"label": {"type": "string", "enum": ["a", "b"]}},
    "required": ["label"],
}
#: The small model by name of a model of Gemini.
SMALL_GEMINI = "gemini-2.5-flash-lite"
#: Models that embed, by how far their vectors say which answer is right.
EMBEDDING = {"near": 0.8, "half": 0.5, "far": 0.0}
PRICES = {
    "small": TokenPrice(input_usd=0.1, output_usd=0.4),
    "middle": TokenPrice(input_usd=0.3, output_usd=1.2),
    "large": TokenPrice(input_usd=2.0, output_usd=8.0),
    BATCHED: TokenPrice(input_usd=2.0, output_usd=8.0),
    **dict.fromkeys(("guess", "varying", "judge", SMALL_GEMINI), TokenPrice(input_usd=0.1, output_usd=0.4)),
    **dict.fromkeys(EMBEDDING, TokenPrice(input_usd=0.02, output_usd=0.0)),
}
SKILLS = {
    **dict.fromkeys(("small", SMALL_GEMINI), Skill(right_share=0.8)),
    "middle": Skill(right_share=0.93),
    "large": Skill(),
    BATCHED: Skill(),
    "guess": Skill(right_share=0.6, logprobs="none"),
    "varying": Skill(right_share=0.85, varying_share=0.5),
}
MODELS = ("small", "middle", "large")
MAX_IN_FLIGHT = 8
DRAWS = 200


def models(**settings: Any) -> ModelSettings:
    return ModelSettings(prices=TokenPrices(models=PRICES), skills=SKILLS, **settings)


def text(number: int) -> str:
    return f"ticket {number}"


#: Two rows have the same prompt.
ROWS: list[dict[str, Any]] = [
    *({"id": number, "text": text(number)} for number in range(600)),
    {"id": 600, "text": text(1)},
]


def limits(name: str) -> dict[str, Any]:
    price = PRICES[name]
    usd = {
        "input_usd_per_million_tokens": price.input_usd,
        "output_usd_per_million_tokens": price.output_usd,
    }
    return {"price": usd, "max_in_flight": MAX_IN_FLIGHT}


def stage(sandbox: Sandbox, name: str, **fields: Any) -> dict[str, Any]:
    model = {"type": "openai", "name": name, "base_url": sandbox.openai_url}
    return {"model": model, "limits": limits(name), **fields}


def make(directory: Path, sandbox: Sandbox, **cascade: Any) -> Job:
    directory.mkdir(exist_ok=True)
    job = Job(directory, stage(sandbox, "large")["model"])
    job.spec |= {
        "owner": "night",
        "state_uri": str(directory / "state"),
        "prompt": {"template": "Which label?\n{{ row.text }}", "output_schema": SCHEMA},
        "limits": limits("large") | {"max_dead_letter_ratio": 1.0},
        "cascade": {
            "stages": [stage(sandbox, "small"), stage(sandbox, "middle")],
            "target_agreement": 0.85,
            "sample_rows": DRAWS,
            **cascade,
        },
    }
    job.write(ROWS)
    return job


@pytest.fixture(scope="module")
def skilled():
    with Sandbox(models=models()) as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(skilled):
    skilled.reset()
    return skilled


@pytest.fixture
def job(tmp_path, sandbox):
    return make(tmp_path, sandbox)


def paid(sandbox: Sandbox) -> Counter[tuple[str, str]]:
    """Paid answers by model and prompt."""
    return Counter((record.model, record.prompt_sha256) for record in sandbox.requests if record.is_billed)


def by_model(sandbox: Sandbox) -> Counter[str]:
    return Counter(name for name, _ in paid(sandbox).elements())


def kill_when(has_come: Callable[[], bool], moment: str, job: Job) -> None:
    """Runs a job in a process of its own, which is killed at a moment."""
    child = start_command(job, job.directory)
    until(lambda: has_come() or child.poll() is not None, moment)
    child.kill()
    child.wait()


def agreement(answers: list[dict[str, Any]], rows: list[dict[str, Any]] = ROWS) -> float:
    right = {row["id"]: json.loads(answer_text(row["text"], model=RIGHT, schema=SCHEMA).text) for row in rows}
    return sum(each["answer"] == right[each["id"]] for each in answers) / len(answers)


@pytest.mark.promise(4)
def test_each_row_has_one_answer_and_the_report_has_the_bill_of_each_stage(job, sandbox):
    ended = job.run()
    report = ended.report["cascade"]
    assert [each["name"] for each in report["stages"]] == [*MODELS]
    answered = Counter(row["llmbeam_answered_by"] for row in ended.answers)
    assert answered == {each["name"]: each["answered"] for each in report["stages"]}
    assert all(answered[name] > 30 for name in MODELS)
    assert report["escalated_ratio"] == pytest.approx(answered["large"] / len(ROWS), abs=1e-4)
    assert agreement(ended.answers) >= 0.85
    assert report["low"] >= 0.85
    assert report["is_guaranteed"]

    bill = {charge.model: charge.nano_usd(PRICES[charge.model]) / 1e9 for charge in sandbox.token_bill.charges}
    assert {each["name"]: each["cost_usd"] for each in report["stages"]} == pytest.approx(bill, abs=1e-6)
    assert ended.report["cost_usd"] == pytest.approx(sandbox.token_bill.nano_usd / 1e9, abs=1e-6)
    assert {each["name"]: each["requests"] for each in report["stages"]} == by_model(sandbox)
    assert ended.report["requests"]["sent"] == sum(by_model(sandbox).values())
    assert set(paid(sandbox).values()) == {1}, "nothing is paid twice"
    assert by_model(sandbox)["small"] == 600, "each prompt is asked once, also for two rows"
    assert ended.report["cost_usd"] < 0.8 * report["all_by_model_usd"]
    page = Path(ended.manifest["report_html_uri"]).read_text()
    assert "Agreement against the share of rows for" in page
    assert "It is guaranteed for these rows." in page


@pytest.mark.full
def test_twenty_thousand_rows_cost_a_quarter_and_the_bill_is_exact(tmp_path, sandbox):
    job = make(tmp_path, sandbox, target_agreement=0.95, sample_rows=None)
    rows = [{"id": number, "text": text(number)} for number in range(20_000)]
    ended = job.run(rows)
    report = ended.report["cascade"]
    assert ended.report["cost_usd"] == pytest.approx(sandbox.token_bill.nano_usd / 1e9, abs=1e-6)
    assert ended.report["cost_usd"] < 0.3 * report["all_by_model_usd"]
    assert {each["name"]: each["requests"] for each in report["stages"]} == by_model(sandbox)
    assert set(paid(sandbox).values()) == {1}
    assert agreement(ended.answers, rows) >= 0.95


@pytest.mark.promise(2)
def test_a_second_run_sends_nothing_and_publishes_the_same(job, sandbox):
    first = job.run()
    sent = len(sandbox.requests)
    again = job.run()
    assert content(again.answers) == content(first.answers)
    assert len(sandbox.requests) == sent
    assert not again.report["cascade"]["is_guaranteed"]


def test_a_later_run_uses_the_calibration_and_audits_it(tmp_path, sandbox):
    job = make(tmp_path, sandbox)
    job.run()
    before = by_model(sandbox)
    later = job.run(name="tuesday", sink={"uri": str(job.out), "on_existing": "take_over"})
    report = later.report["cascade"]
    assert not report["is_guaranteed"]
    assert report["audited"] >= 20
    assert report["disagreements"] < report["audited"] / 2
    sent = by_model(sandbox) - before
    assert sent["small"] == 600
    assert sent["large"] == report["stages"][-1]["requests"] < 200
    assert {row["llmbeam_answered_by"] for row in later.answers} == {*MODELS}
    stored = read_calibration(JobSpec.parse(job.spec))
    assert stored.audits.keys() == {"tuesday"}
    assert stored.audit.audited == report["audited"]
    third = job.run(name="wednesday", sink={"uri": str(job.out), "on_existing": "take_over"})
    assert third.report["cascade"]["audited_before"] == report["audited"]


@pytest.mark.full
def test_a_calibration_that_its_audits_contradict_is_made_again(tmp_path, sandbox, caplog):
    job = make(tmp_path, sandbox)
    job.run()
    spec = JobSpec.parse(job.spec)
    (file,) = (tmp_path / "state" / "cascades").iterdir()
    stored = json.loads(file.read_text())
    stored["audits"] = {"tuesday": {"rows": 600, "kept": 400, "audited": 100, "disagreements": 90}}
    file.write_text(json.dumps(stored))
    again = job.run(name="wednesday", sink={"uri": str(job.out), "on_existing": "take_over"})
    assert again.report["cascade"]["is_guaranteed"]
    assert "90 of 100 audited rows disagree" in caplog.text
    assert read_calibration(spec).audits == {}


@pytest.mark.full
def test_a_calibration_without_thresholds_is_made_again_after_twenty_rows_for_each_draw(tmp_path, sandbox):
    job = make(tmp_path, sandbox, stages=[stage(sandbox, "guess")], target_agreement=0.95)
    job.run()
    (file,) = (tmp_path / "state" / "cascades").iterdir()
    job.run(name="tuesday", sink={"uri": str(job.out), "on_existing": "take_over"})
    stored = json.loads(file.read_text())
    assert stored["job"] == "job"
    assert stored["audits"]["tuesday"] == {"rows": len(ROWS), "kept": 0, "audited": 0, "disagreements": 0}
    stored["audits"]["monday"] = {"rows": 20 * DRAWS - len(ROWS), "kept": 0, "audited": 0, "disagreements": 0}
    file.write_text(json.dumps(stored))
    job.run(name="wednesday", sink={"uri": str(job.out), "on_existing": "take_over"})
    assert json.loads(file.read_text())["job"] == "wednesday"


def test_scores_that_say_nothing_leave_every_row_to_model(tmp_path, sandbox):
    ended = make(tmp_path, sandbox, stages=[stage(sandbox, "guess")], target_agreement=0.95).run()
    report = ended.report["cascade"]
    assert report["reason"]
    assert {row["llmbeam_answered_by"] for row in ended.answers} == {"large"}
    assert by_model(sandbox)["large"] == 600
    assert by_model(sandbox)["guess"] < DRAWS, "it is asked for the sample alone"


def test_a_cascade_that_cannot_pay_for_its_calibration_sends_no_sample(tmp_path, sandbox):
    job = make(tmp_path, sandbox)
    ended = job.run(ROWS[:40])
    assert by_model(sandbox) == {"large": 40}
    assert ended.report["cascade"]["reason"]
    assert not ended.report["cascade"]["is_guaranteed"]


@pytest.mark.full
def test_a_row_that_fails_in_a_stage_escalates_and_one_that_fails_in_model_is_in_the_dead_letter(
    tmp_path, sandbox
):
    job = make(tmp_path, sandbox)
    job.run()
    sandbox.faults.queue(METHOD, *[Fault(kind="error", http_status=400, message="no")] * 5)
    later = job.run(name="tuesday", sink={"uri": str(job.out), "on_existing": "take_over"})
    small, *_ = later.report["cascade"]["stages"]
    assert small["failed"] == 5
    assert later.report["rows"]["dead_letter"] == 0
    sandbox.faults.when(METHOD, "ticket 5", Fault(kind="error", http_status=400, message="no"))
    last = job.run(name="wednesday", sink={"uri": str(job.out), "on_existing": "take_over"})
    assert {row["text"] for row in last.dead_letter} == {row["text"] for row in ROWS if "ticket 5" in row["text"]}


@pytest.mark.full
def test_repeated_answers_are_a_score(tmp_path, sandbox):
    varying = stage(sandbox, "varying", score={"type": "repeats", "samples": 3})
    ended = make(tmp_path, sandbox, stages=[varying], target_agreement=0.7, class_agreement=0.4).run()
    report = ended.report["cascade"]
    assert by_model(sandbox)["varying"] == 3 * 600
    assert ended.report["cost_usd"] == pytest.approx(sandbox.token_bill.nano_usd / 1e9, abs=1e-6)
    assert report["stages"][0]["answered"] > 0, report["reason"]
    assert agreement(ended.answers) >= 0.7


@pytest.mark.full
@pytest.mark.parametrize("of", ["minimum", "label"])
@pytest.mark.parametrize("name", ["small", SMALL_GEMINI])
def test_single_tokens_are_a_score(tmp_path, sandbox, of, name):
    asked = stage(sandbox, name, score={"type": "logprob", "of": of})
    if name == SMALL_GEMINI:
        asked["model"] |= {"type": "gemini", "base_url": sandbox.gemini_url}
    job = make(tmp_path, sandbox, stages=[asked])
    ended = job.run()
    counts, _ = ended.report["cascade"]["stages"]
    assert counts["answered"] > 100, ended.report["cascade"]["reason"]
    assert agreement(ended.answers) >= 0.85
    segments = (path.read_text() for path in job.directory.rglob("journal*/*.jsonl"))
    entries = [json.loads(line) for text in segments for line in text.splitlines()]
    assert {"score_logprob" in entry for entry in entries if entry["model"] != "large"} == {True}
    assert {"score_logprob" in entry for entry in entries if entry["model"] == "large"} == {False}


@pytest.mark.full
def test_a_judge_is_asked_about_different_answers_alone_and_once(tmp_path, sandbox):
    judge = stage(sandbox, "judge")
    agreement = {"type": "judge", "rubric": "{{ row.note }} {{ row.answer }} {{ row.expected }}", **judge}
    job = make(tmp_path, sandbox, stages=[stage(sandbox, "small")], agreement=agreement)
    job.write([{**row, "note": f"note {row['id']}"} for row in ROWS])
    ended = job.run()
    counts = ended.report["cascade"]
    sampled, asked = DRAWS, by_model(sandbox)["judge"]
    assert 0.1 * sampled < asked < 0.3 * sampled, "the small model differs on a fifth of the rows"
    assert set(paid(sandbox).values()) == {1}
    assert {each["name"]: each["requests"] for each in counts["stages"]} == {
        name: number for name, number in by_model(sandbox).items() if name != "judge"
    }
    bill = {charge.model: charge.nano_usd(PRICES[charge.model]) / 1e9 for charge in sandbox.token_bill.charges}
    assert counts["judge_cost_usd"] == pytest.approx(bill["judge"], abs=1e-6)
    assert ended.report["cost_usd"] == pytest.approx(sandbox.token_bill.nano_usd / 1e9, abs=1e-6)

    later = job.run(name="tuesday", sink={"uri": str(job.out), "on_existing": "take_over"})
    audited = later.report["cascade"]["audited"]
    assert audited >= 20
    fresh = by_model(sandbox)["judge"] - asked
    assert fresh <= audited, "verdicts on the same answers are in the journal of their job alone"
    assert later.report["cost_usd"] + ended.report["cost_usd"] == pytest.approx(
        sandbox.token_bill.nano_usd / 1e9, abs=1e-6
    )


@pytest.mark.full
def test_a_stage_has_a_prompt_of_its_own(tmp_path, sandbox):
    prompt = {"template": "{{ row.note }}\n{{ row.text }}", "output_schema": SCHEMA}
    own = stage(sandbox, "small", prompt=prompt)
    job = make(tmp_path, sandbox, stages=[own])
    ended = job.run([{**row, "note": "Be quick."} for row in ROWS])
    assert ended.report["cascade"]["stages"][0]["answered"] > 0
    assert set(paid(sandbox).values()) == {1}, "the sample and the rows have the same prompts"
    prompts = {name: {each for model, each in paid(sandbox) if model == name} for name in ("small", "large")}
    assert not prompts["small"] & prompts["large"]


@pytest.mark.full
def test_a_field_of_the_answer_is_a_score(tmp_path, sandbox):
    schema = {
        "type": "object",
        "properties": {**SCHEMA["properties"], "confidence": {"type": "number"}},
        "required": ["label", "confidence"],
    }
    job = make(tmp_path, sandbox, stages=[stage(sandbox, "small", score="field")], agreement={"label": "exact"})
    job.spec["prompt"]["output_schema"] = schema
    ended = job.run()
    report = ended.report["cascade"]
    assert report["draws"] == DRAWS
    assert report["curve"], "each draw has a score"
    assert report["reason"] or report["stages"][0]["threshold"] is not None


def test_one_budget_is_over_all_stages(tmp_path, sandbox):
    job = make(tmp_path, sandbox)
    whole = job.run().report["cost_usd"]
    sandbox.reset()
    other = make(tmp_path / "other", sandbox)
    budget = {"limits": limits("large") | {"budget_usd": 0.8 * whole}}
    with pytest.raises(BudgetExceededError):
        other.run(**budget)
    spent = sandbox.token_bill.nano_usd / 1e9
    assert 0.75 * whole < spent < 0.85 * whole


def test_the_cascade_is_tried_with_the_sample_alone(job, sandbox):
    trial = CascadeTrial.model_validate(
        run_step("cascade", JobSpec.parse(job.spec), CascadeTable(max_points=5))["result"]
    )
    sent = by_model(sandbox)
    assert len({*sent.values()}) == 1, "each is asked for the sample"
    assert sent["large"] < DRAWS
    assert "→" in str(trial)
    assert "Nothing else was sent" in str(trial)
    assert trial.cost_usd == pytest.approx(sandbox.token_bill.nano_usd / 1e9)
    estimate = run_step("estimate", JobSpec.parse(job.spec), EstimateSample(sample_size=0))
    assert 0 < estimate["result"]["cascade_cost_usd"] < 0.6 * estimate["result"]["cost_usd"]
    (line,) = (line for line in estimate["log"] if line.startswith("Cascade "))
    figures = r"about \$0\.\d+ in \d.* with its stages, by its calibration; \$0\.\d+ in \d.* by `model` alone"
    assert re.search(figures, line)
    assert estimate["result"]["cascade_seconds"] > 2
    job.run()
    assert set(paid(sandbox).values()) == {1}, "the run uses its answers and its calibration"


def test_a_try_that_was_killed_after_the_calibration_leaves_its_cost_to_the_report_of_the_next(job, sandbox):
    spec = JobSpec.parse(job.spec)
    begin_cascade(spec, lambda: beam.Pipeline(runner=FnApiRunner()))  # what the killed try has left
    sample_usd = sandbox.token_bill.nano_usd / 1e9
    report = job.run().report
    assert report["cascade"]["sample_cost_usd"] == pytest.approx(sample_usd, abs=1e-6)
    assert report["cost_usd"] == pytest.approx(sandbox.token_bill.nano_usd / 1e9, abs=1e-6)
    assert {each["name"]: each["requests"] for each in report["cascade"]["stages"]} == by_model(sandbox)
    assert job.run().report["cascade"]["sample_cost_usd"] == 0, "once"


def test_rows_are_masked_before_any_stage_and_the_audit_names_the_stage(job, sandbox, monkeypatch):
    monkeypatch.setenv("LLMBEAM_PRIVACY_KEY", "a secret of more than thirty-two characters")
    job.write([{"id": row["id"], "text": f"mail{row['id']}@example.com {row['text']}"} for row in ROWS])
    job.spec["safety"] = {"privacy": {}, "audit": {"uri": str(job.directory / "audit"), "include_text": True}}
    job.spec["sink"] |= {"passthrough": ["text"]}
    ended = job.run()
    assert all(f"mail{row['id']}@example.com" in row["text"] for row in ended.answers), "restored"
    assert {row["llmbeam_answered_by"] for row in ended.answers} == {*MODELS}
    assert ended.report["privacy"]["masked"]["EMAIL"] == len(ROWS)
    records = [
        json.loads(line)
        for path in (job.directory / "audit").rglob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert all(record["requested_model"] == record["stage"] for record in records if "stage" in record)
    assert Counter(record["requested_model"] for record in records) == by_model(sandbox)
    assert not any("@example.com" in record["prompt"] for record in records)


def test_a_row_that_is_forgotten_is_forgotten_at_each_stage(job):
    ended = job.run()
    row = next(row for row in ended.answers if row["llmbeam_answered_by"] == "middle")
    segments = lambda: "".join(path.read_text() for path in job.directory.rglob("journal*/*.jsonl"))  # noqa: E731
    assert segments().count(row["llmbeam_fingerprint"]) == 2, "an answer of each stage that was asked"
    forget(JobSpec.parse(job.spec), RowsToForget.parse({"keys": [str(row["id"])]}))
    assert row["llmbeam_fingerprint"] not in segments()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What a run that nothing kills publishes, and its requests by model."""
    with Sandbox(models=models(latency=Latency(mean_seconds=0.01))) as sandbox:
        job = make(tmp_path_factory.mktemp("undisturbed"), sandbox, target_agreement=0.92)
        return content(job.run().answers), by_model(sandbox)


@pytest.mark.promise(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "share"),
    [
        pytest.param("small", 0.1, id="sample at stage 1", marks=pytest.mark.full),
        pytest.param("large", 0.3, id="sample at model", marks=pytest.mark.full),
        pytest.param("small", 0.7, id="stage 1"),
        pytest.param("middle", 0.9, id="stage 2", marks=pytest.mark.full),
        pytest.param("large", 0.97, id="model", marks=pytest.mark.full),
    ],
)
def test_a_job_killed_with_kill_9_in_each_phase_pays_for_nothing_twice(tmp_path, undisturbed, model, share):
    expected, whole = undisturbed
    with Sandbox(models=models(latency=Latency(mean_seconds=0.01))) as sandbox:
        job = make(tmp_path / "killed", sandbox, target_agreement=0.92)
        moment = round(share * whole[model])
        kill_when(lambda: by_model(sandbox)[model] >= moment, f"{moment} at {model}", job)
        assert content(job.run().answers) == expected
        sent = paid(sandbox)
        assert Counter(name for name, _ in sent) == whole
        assert sent.total() - len(sent) <= MAX_IN_FLIGHT


@pytest.mark.promise(2)
@pytest.mark.slow
@pytest.mark.full
def test_a_job_killed_during_the_audit_of_a_later_run_pays_for_nothing_twice(tmp_path):
    with Sandbox(models=models(latency=Latency(mean_seconds=0.01))) as sandbox:
        job = make(tmp_path / "killed", sandbox)
        job.run()
        sandbox.reset()
        job.spec |= {"name": "tuesday", "sink": {"uri": str(job.out), "on_existing": "take_over"}}
        kill_when(lambda: by_model(sandbox)["large"] >= 10, "the audit began", job)
        ended = job.run()
        sent = paid(sandbox)
        assert sent.total() - len(sent) <= MAX_IN_FLIGHT
        assert ended.report["cascade"]["audited"] >= 20, "also those whose answer was in the journal"


def batch_job(directory: Path, sandbox: Sandbox) -> Job:
    job = make(directory, sandbox, target_agreement=0.92)
    job.spec |= {
        "model": {"type": "gemini", "name": BATCHED, "base_url": sandbox.gemini_url},
        "limits": limits("large"),
        "inference": {"mode": "batch"},
    }
    return job


@pytest.mark.promise(2)
@pytest.mark.full
def test_a_task_that_releases_its_slot_during_batch_inference_pays_for_nothing_twice(
    tmp_path, sandbox, quick_batch_polls
):
    job = batch_job(tmp_path, sandbox)
    with pytest.raises(BatchPendingError):
        run(JobSpec.parse(job.spec), waits=False)
    assert set(paid(sandbox).values()) == {1}
    ended = job.run()
    assert set(paid(sandbox).values()) == {1}
    assert ended.origins["batch"] > 20
    assert ended.report["cost_usd"] == pytest.approx(sandbox.token_bill.nano_usd / 1e9, abs=1e-6)
    assert ended.report["cascade"]["is_guaranteed"]


@pytest.mark.promise(4)
def test_what_the_stages_leave_goes_to_batch_inference(tmp_path, sandbox, quick_batch_polls):
    job = batch_job(tmp_path, sandbox)
    ended = job.run()
    *stages, model = ended.report["cascade"]["stages"]
    tiers = {(charge.model, charge.tier): charge for charge in sandbox.token_bill.charges}
    sampled, batched = tiers[BATCHED, "standard"], tiers[BATCHED, "batch"]
    assert sampled.answers < DRAWS, "the sample alone is sent online"
    assert batched.answers > 20
    assert model["answered"] == batched.answers + sampled.answers
    assert ended.origins["batch"] == batched.answers
    assert ended.report["cost_usd"] == pytest.approx(sandbox.token_bill.nano_usd / 1e9, abs=1e-6)
    assert [each["requests"] for each in stages] == [by_model(sandbox)[name] for name in MODELS[:2]]
    assert set(paid(sandbox).values()) == {1}
    assert agreement(ended.answers) >= 0.92


@pytest.mark.full
@pytest.mark.parametrize(("finish_by", "tier"), [("PT48H", "batch"), ("PT5M", "standard")])
def test_auto_takes_the_cheapest_way_in_time_for_what_the_stages_leave(
    tmp_path, sandbox, quick_batch_polls, caplog, finish_by, tier
):
    job = batch_job(tmp_path, sandbox)
    job.spec["inference"] = {"mode": "auto", "finish_by": finish_by}
    caplog.set_level("INFO", logger="llmbeam")
    ended = job.run()
    assert f"`inference.mode` 'auto': {tier} is the cheapest way" in caplog.text
    assert ended.origins["batch"] == sum(
        charge.answers for charge in sandbox.token_bill.charges if charge.tier == "batch"
    )
    assert (ended.origins["batch"] > 20) == (tier == "batch")
    assert ended.report["cost_usd"] == pytest.approx(sandbox.token_bill.nano_usd / 1e9, abs=1e-6)
    assert set(paid(sandbox).values()) == {1}


@pytest.mark.full
def test_what_the_stages_leave_is_sent_at_the_flex_tier_until_the_standard_one_is_needed(
    tmp_path, sandbox, caplog
):
    job = batch_job(tmp_path, sandbox)
    job.spec["inference"] = {"service_tier": "flex_then_standard", "finish_by": "PT6H"}
    for each in job.spec["cascade"]["stages"]:
        each["inference"] = {"service_tier": "standard"}
    caplog.set_level("INFO", logger="llmbeam")
    ended = job.run()
    assert "Rows are sent at the flex tier until" in caplog.text
    tiers = {charge.tier: charge.answers for charge in sandbox.token_bill.charges if charge.model == BATCHED}
    assert tiers["flex"] > 20
    assert tiers["standard"] < DRAWS, "the sample alone"
    assert ended.report["cost_usd"] == pytest.approx(sandbox.token_bill.nano_usd / 1e9, abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": {"template": "x", "media": [{"uri": "{{ row.text }}"}]}}, "prompt.media"),
    ],
)
def test_what_is_not_implemented_with_a_cascade_is_refused(job, changes, message):
    with pytest.raises(JobSpecError, match=message):
        JobSpec.parse(job.spec | changes)


def test_a_stage_that_answers_nobody_fails_the_job_before_model_is_paid_for_all_rows(tmp_path, sandbox):
    job = make(tmp_path, sandbox)
    sandbox.faults.queue(METHOD, *[Fault(kind="error", http_status=404, message="no such model")] * 40)
    with pytest.raises(LLMBeamError, match="no such model"):
        job.run()
    assert by_model(sandbox)["large"] == 0
