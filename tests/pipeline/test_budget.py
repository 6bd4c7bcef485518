"""Jobs that have spent their budget: they end, keep the paid answers, and the next run resumes."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from airflow_provider_llmbeam.exceptions import BudgetExceededError
from tests.pipeline.conftest import read_lines

pytestmark = pytest.mark.promise(4)

MAX_IN_FLIGHT = 4
#: One dollar per input or output token, so that the cost follows from the tokens that were sent.
PRICE = {"input_usd_per_million_tokens": 1e6, "output_usd_per_million_tokens": 1e6}


def rows(count: int) -> list[dict]:
    return [{"id": number, "text": f"row number {number:02}"} for number in range(count)]


def limits(budget_usd: float | None) -> dict:
    return {"budget_usd": budget_usd, "price": PRICE, "max_in_flight": MAX_IN_FLIGHT}


def journal(job) -> list[dict]:
    segments = (job.out / ".llmbeam" / "job" / "journal@loopback").glob("*.jsonl")
    return [entry for segment in segments for entry in read_lines(segment)]


def spent(job) -> int:
    return sum(entry["input_tokens"] + entry["output_tokens"] for entry in journal(job))


def test_a_run_resumes_where_the_budget_ended_the_previous_one(job, sandbox):
    tokens_per_row = 2 * job.run(rows(1)).report["tokens"]["input"]
    previous = (job.out / "answers-00000-of-00001.jsonl").read_bytes()
    sandbox.reset()
    budget_usd = 10 * tokens_per_row
    with pytest.raises(BudgetExceededError) as caught:
        job.run(rows(60), limits=limits(budget_usd))

    assert (job.out / "answers-00000-of-00001.jsonl").read_bytes() == previous, "the previous output was kept"
    paid = len(sandbox.requests)
    assert len(journal(job)) == paid + 1, "whatever was sent was awaited and written down"
    assert 0 < paid < 40
    words = str(caught.value)
    cost_usd = float(re.search(r"has spent \$([\d,.]+) on", words)[1].replace(",", ""))
    assert cost_usd > budget_usd
    assert f"`limits.budget_usd` is ${budget_usd:,.6g}" in words

    ended = job.run(limits=limits(None))
    assert len(sandbox.requests) == 60 - 1, "the rest is asked, and nothing twice"
    assert ended.origins == Counter({"fresh": 59 - paid, "resumed": 1 + paid})
    assert ended.manifest["cost_usd"] == ended.report["tokens"]["input"] + ended.report["tokens"]["output"]


def test_successive_budgets_answer_every_row(job, sandbox):
    job.write(rows(30))
    ended, failed = None, 0
    while ended is None:
        before = len(sandbox.requests)
        try:
            ended = job.run(limits=limits(100.0))
        except BudgetExceededError:
            assert len(sandbox.requests) > before, "each budget buys some answers"
            failed += 1
    assert failed > 1
    assert len(ended.answers) == 30
    assert set(sandbox.requests.paid().values()) == {1}


def test_resumed_rows_cost_nothing(job, sandbox):
    job.run(rows(20))
    ended = job.run(limits=limits(0.01))
    assert ended.origins["resumed"] == 20
    assert ended.manifest["cost_usd"] == 0.0


def test_a_job_within_its_budget_succeeds_and_reports_its_cost(job, sandbox):
    ended = job.run(rows(10), limits={"budget_usd": 5.0})
    tokens = ended.report["tokens"]
    list_price = (tokens["input"] * 0.30 + tokens["output"] * 2.50) / 1e6
    assert ended.manifest["cost_usd"] == ended.report["cost_usd"] == pytest.approx(list_price, abs=1e-6)


def test_a_model_of_unknown_price_has_no_cost(openai_job, sandbox):
    assert openai_job.run(rows(3)).manifest["cost_usd"] is None


def test_the_result_names_the_error_of_a_spent_budget(job, sandbox, tmp_path: Path):
    """The operator needs the type of the error, which is not retryable."""
    from airflow_provider_llmbeam.pipeline.__main__ import main
    from airflow_provider_llmbeam.pipeline.command import EXIT_FAILED

    job.write(rows(30))
    spec, result = tmp_path / "spec.json", tmp_path / "result.json"
    spec.write_text(json.dumps(job.spec | {"limits": limits(20.0)}))
    assert main(["--spec", str(spec), "--result", str(result)]) == EXIT_FAILED
    assert json.loads(result.read_text())["error"]["type"] == "BudgetExceededError"
