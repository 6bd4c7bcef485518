"""A guard model before the requests of a job, and after its answers."""

from __future__ import annotations

from collections import Counter

import pytest

GUARD = "meta-llama/Llama-Guard-3-8B"
#: 40 rows: each tenth prompt is unsafe, each eighth other one tempts the model to an unsafe answer, two are equal.
ROWS = [
    {"id": number, "text": f"row {number} {'unsafe_S1' if number % 10 == 0 else 'tempts_S6' if number % 8 == 0 else ''}"}
    for number in range(40)
] + [{"id": 40, "text": "row 1 "}]
UNSAFE_PROMPTS = {0, 10, 20, 30}
UNSAFE_ANSWERS = {8, 16, 24, 32}


def asked(sandbox) -> Counter[str]:
    """The answered requests by model: the guard, and the model of the job."""
    return Counter("guard" if record.model == GUARD else "job" for record in sandbox.requests if record.http_status == 200)


@pytest.fixture
def moderated(openai_job, sandbox):
    """A job with a guard; the fields of its moderation are those of `changes`."""

    def run(rows=None, limits=None, **changes):
        guard = {"type": "openai", "name": GUARD, "base_url": sandbox.openai_url}
        safety = {"moderation": {"model": guard, **changes}}
        return openai_job.run(rows, safety=safety, limits=limits or {})

    return run


def test_each_distinct_text_is_judged_once_and_unsafe_rows_are_in_the_dead_letter(moderated, sandbox):
    ended = moderated(ROWS)
    errors = {row["id"]: row["llmbeam_error"] for row in ended.dead_letter}
    assert {row: error["category"] for row, error in errors.items()} == (
        dict.fromkeys(UNSAFE_PROMPTS, "S1") | dict.fromkeys(UNSAFE_ANSWERS, "S6")
    )
    assert ended.kinds == Counter(moderated=8)
    assert ended.report["dead_letter_by_category"] == {"moderated": {"S1": 4, "S6": 4}}
    assert asked(sandbox) == Counter(job=36, guard=40 + 36)
    counts = ended.report["moderation"]
    assert counts["requests_sent"] == 76
    assert ended.report["requests"]["sent"] == 36
    assert counts["input"] == {
        "texts": 40, "safe": 37, "unsafe": 4, "unreadable": 0, "unjudged": 0,
        "actions": {"fail": 4}, "categories": {"S1": 4},
    }
    assert counts["output"]["actions"] == {"fail": 4}
    again = moderated()
    assert asked(sandbox) == Counter(job=36, guard=76), "verdicts and answers are in the journal"
    assert again.report["moderation"]["requests_sent"] == 0
    assert again.kinds == Counter(moderated=8)
