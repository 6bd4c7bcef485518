"""Answers that several jobs share."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import JobSpec

pytestmark = pytest.mark.promise(2)

ROWS = [{"id": number, "text": f"text {number}"} for number in range(20)]
DAY_SECONDS = 86_400


def segments(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "state" / "cache" / "summaries@loopback").glob("*.jsonl"))


def test_prompts_answered_by_another_job_are_not_sent_again(days, sandbox):
    monday, tuesday = days
    monday.run(ROWS)
    ended = tuesday.run([*ROWS, {"id": 20, "text": "new"}])
    assert ended.origins == Counter(cached=20, fresh=1)
    assert len(sandbox.requests) == 21
    assert tuesday.run().origins == Counter(cached=20, resumed=1), "its own answer stays its own"


def test_without_a_cache_each_job_sends_all_its_prompts(days, sandbox):
    for job in days:
        job.run(ROWS, cache=None)
    assert len(sandbox.requests) == 40


def test_another_scope_is_another_cache(days, sandbox):
    monday, tuesday = days
    monday.run(ROWS)
    tuesday.run(ROWS, cache={"scope": "translations"})
    assert len(sandbox.requests) == 40


@pytest.mark.parametrize("is_touched", [False, True], ids=["old file", "copied file"])
def test_prompts_with_expired_cached_answers_are_sent_again(days, sandbox, tmp_path, is_touched):
    monday, tuesday = days
    monday.run(ROWS)
    (segment,) = segments(tmp_path)
    entries = [json.loads(line) for line in segment.read_text().splitlines()]
    for number, entry in enumerate(entries):
        entry["answered_at"] = time.time() - (8 if number < 5 else 6) * DAY_SECONDS
    segment.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    if not is_touched:
        os.utime(segment, times=(time.time() - 6 * DAY_SECONDS,) * 2)
    ended = tuesday.run(ROWS, cache={"scope": "summaries", "max_age_days": 7})
    assert ended.origins == Counter(cached=15, fresh=5)


def test_the_same_batch_does_not_reuse_its_expired_answers(days, sandbox, tmp_path):
    monday, tuesday = days
    monday.run(ROWS)
    (segment,) = segments(tmp_path)
    entries = [json.loads(line) for line in segment.read_text().splitlines()]
    old = "".join(json.dumps({**entry, "answered_at": time.time() - 8 * DAY_SECONDS}) + "\n" for entry in entries)
    segment.write_text(old)
    before = len(sandbox.requests)
    ended = tuesday.run(ROWS, cache={"scope": "summaries", "max_age_days": 7})
    assert ended.origins == Counter(fresh=len(entries))
    assert len(sandbox.requests) - before == len(entries)


def test_a_cache_without_state_uri_is_refused(days):
    monday, _ = days
    with pytest.raises(JobSpecError, match="`state_uri`: this field is needed with `cache`"):
        JobSpec.parse({**monday.spec, "state_uri": None})
