from __future__ import annotations

from collections import Counter

import pytest

from airflow_provider_llmbeam.exceptions import NothingAnsweredError, RowsLostError, TooManyFailedRowsError
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally
from airflow_provider_llmbeam.pipeline.transforms.publish import check_ratio, check_sums


def test_matching_sums_pass() -> None:
    check_sums(Tally(read=3, answered=Counter(fresh=1, duplicate=1), failed=Counter(blocked=1)))
    check_sums(Tally())


@pytest.mark.parametrize("rows_read", [2, 4])
def test_a_row_too_few_or_too_many_stops_the_publication(rows_read: int) -> None:
    with pytest.raises(
        RowsLostError, match=rf"^{rows_read} rows read, but 2 answered \+ 1 in the dead letter = 3\."
    ):
        check_sums(Tally(read=rows_read, answered=Counter(fresh=2), failed=Counter(blocked=1)))


def test_as_many_failed_rows_as_allowed_pass() -> None:
    check_ratio(Tally(read=10, answered=Counter(fresh=9), failed=Counter(blocked=1)), 0.1, "out/dead.jsonl")
    check_ratio(Tally(), 0.0, "out/dead.jsonl")


def test_too_many_failed_rows_keep_the_previous_output_and_quote_the_reasons() -> None:
    dead = Counter(blocked=2, timeout=1)
    tally = Tally(read=10, answered=Counter(fresh=7), failed=dead, messages={"blocked": "No.", "timeout": "slow"})
    with pytest.raises(TooManyFailedRowsError) as caught:
        check_ratio(tally, 0.2, "out/dead.jsonl")
    assert str(caught.value).startswith(
        "3 of 10 rows ended in the dead letter, 'out/dead.jsonl': 2 × blocked (No.), 1 × timeout (slow). "
        "`limits.max_dead_letter_ratio` is 0.2, so the previous output was kept."
    )


def test_a_job_without_answers_fails_with_the_reason_and_the_dead_letter() -> None:
    tally = Tally(read=12, failed=Counter(unauthorized=12), messages={"unauthorized": "API key not valid."})
    with pytest.raises(NothingAnsweredError) as caught:
        check_ratio(tally, 1.0, "out/dead.jsonl")
    assert str(caught.value) == (
        "None of 12 rows was answered. unauthorized: API key not valid. Every row is in the dead letter, "
        "'out/dead.jsonl'; the previous output was kept."
    )
