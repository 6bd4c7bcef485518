from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from airflow_provider_llmbeam.exceptions import (
    JobSpecError,
    NothingAnsweredError,
    PermanentFailureError,
    RowsLostError,
    TooManyFailedRowsError,
)
from airflow_provider_llmbeam.pipeline.reporting.report import Report
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally
from airflow_provider_llmbeam.pipeline.transforms.publish import Publish, check_ratio, check_sums
from airflow_provider_llmbeam.pipeline.transforms.write_report import ReportWriter
from airflow_provider_llmbeam.spec import JobSpec


def test_matching_sums_pass() -> None:
    check_sums(Tally(read=3, answered=Counter(fresh=1, duplicate=1), failed=Counter(blocked=1)))
    check_sums(Tally())
    check_sums(Tally(read=3, answered=Counter(fresh=1), skipped=Counter(empty=2)))


@pytest.mark.parametrize("rows_read", [2, 4])
def test_a_row_too_few_or_too_many_stops_the_publication(rows_read: int) -> None:
    with pytest.raises(
        RowsLostError, match=rf"^{rows_read} rows read, but 2 answered \+ 1 in the dead letter \+ 0 skipped = 3\."
    ):
        check_sums(Tally(read=rows_read, answered=Counter(fresh=2), failed=Counter(blocked=1)))


def test_as_many_failed_rows_as_allowed_pass() -> None:
    check_ratio(Tally(read=10, answered=Counter(fresh=9), failed=Counter(blocked=1)), 0.1, "out/dead.jsonl", 20)
    check_ratio(Tally(), 0.0, "out/dead.jsonl", 20)


def test_too_many_failed_rows_keep_the_previous_output_and_quote_the_reasons() -> None:
    dead = Counter(blocked=2, timeout=1)
    tally = Tally(read=10, answered=Counter(fresh=7), failed=dead, messages={"blocked": "No.", "timeout": "slow"})
    with pytest.raises(TooManyFailedRowsError) as caught:
        check_ratio(tally, 0.2, "out/dead.jsonl", 20)
    assert (
        str(caught.value)
        == "3 of 10 rows failed, and `limits.max_dead_letter_ratio` is 0.2, so the previous output was kept. "
        "2 answers were blocked: change `prompt.template`, the rows or the model. "
        "1 rows had no answer in time: check the server, or raise `limits.request_timeout_seconds`. "
        "The answers are in the journal: another run sends the failed rows only. "
        "The failed rows are in 'out/dead.jsonl', e.g. blocked (No.), timeout (slow)."
    )


def failed(read: int = 12, answered: int = 0, **kinds: int) -> Tally:
    messages = dict.fromkeys(kinds, "Says why.")
    return Tally(read=read, answered=Counter(fresh=answered), failed=Counter(kinds), messages=messages)


def test_rows_that_failed_before_may_all_fail_again_unless_the_key_is_wrong() -> None:
    check_ratio(failed(2, blocked=2), 1.0, "out/dead.jsonl", 20, may_all_fail=True)
    for tally, ratio in (
        (failed(2, blocked=2), 0.5),
        (failed(2, unauthorized=2), 1.0),
        (failed(40, not_sent=40), 1.0),
    ):
        with pytest.raises(TooManyFailedRowsError):
            check_ratio(tally, ratio, "out/dead.jsonl", 20, may_all_fail=True)


def test_a_job_without_answers_fails_with_the_reason_and_the_dead_letter() -> None:
    tally = Tally(read=12, failed=Counter(unauthorized=12), messages={"unauthorized": "API key not valid."})
    with pytest.raises(PermanentFailureError) as caught:
        check_ratio(tally, 1.0, "out/dead.jsonl", 20)
    assert str(caught.value) == (
        "12 of 12 rows failed as the server refuses the key: set one, or credentials, for the model. "
        "API key not valid. The rows are in 'out/dead.jsonl'; the old output stays."
    )


def test_a_job_whose_answers_were_all_cut_names_the_limit_and_what_to_do() -> None:
    with pytest.raises(PermanentFailureError, match=r"were cut at `generation\.max_output_tokens` = 20: raise"):
        check_ratio(failed(truncated=12), 1.0, "out/dead.jsonl", 20)


@pytest.mark.parametrize("kind", ["timeout", "connection", "server_error", "quota_exhausted"])
def test_a_job_without_answers_can_be_retried_if_the_reason_may_pass(kind: str) -> None:
    with pytest.raises(NothingAnsweredError, match="Says why") as caught:
        check_ratio(failed(**{kind: 12}), 1.0, "out/dead.jsonl", 20)
    assert caught.value.retryable


def test_a_job_of_which_no_row_became_a_request_is_a_fault_of_its_spec() -> None:
    with pytest.raises(JobSpecError, match=r"correct `prompt\.template`.* Nothing was sent or billed\.$"):
        check_ratio(failed(template_error=11, unreadable_row=1), 1.0, "out/dead.jsonl", 20)


@pytest.mark.parametrize(("refused", "is_retryable"), [(2, True), (3, False)])
def test_too_many_failed_rows_are_final_if_no_run_can_mend_enough(refused: int, is_retryable: bool) -> None:
    with pytest.raises(TooManyFailedRowsError) as caught:
        check_ratio(failed(10, 4, invalid_output=refused, timeout=6 - refused), 0.2, "out/dead.jsonl", 20)
    assert caught.value.retryable is is_retryable


@pytest.mark.parametrize("answered", [0, 50])
def test_a_job_that_stopped_sending_says_why(answered: int) -> None:
    with pytest.raises(PermanentFailureError, match=r"^Says why\. The rows are in "):
        check_ratio(failed(100, answered, not_sent=68 - answered, truncated=32), 0.1, "out/dead.jsonl", 20)


def test_rows_that_fail_again_in_another_run_may_stay_unsent_if_so_many_may_fail() -> None:
    """The journal has the answers of all other rows, so those that always fail are the pilot of the run."""
    check_ratio(failed(1000, 960, not_sent=8, bad_request=32), 0.1, "out/dead.jsonl", 20)


class Job:
    """The publication of a job with one row, whose answer is staged.

    Args:
        directory: Directory of the sink.
        started_at: Unix time of its start.
        shards: Number of its files.
    """

    def __init__(self, directory: Path, started_at: float, shards: int = 1) -> None:
        self.spec = JobSpec.parse(
            {
                "name": "job",
                "source": {"uri": str(directory / "rows.jsonl"), "key": ["id"]},
                "prompt": {"template": "{{ row.text }}"},
                "model": {"type": "echo"},
                "sink": {"uri": str(directory / "out"), "shards": shards},
            }
        )
        self.started_at = started_at

    def stage(self) -> None:
        Path(self.spec.paths.staging_uri).mkdir(parents=True)
        Path(self.staged[0][1]).write_text('{"id": 1, "answer": "a"}\n')

    @property
    def staged(self) -> list[tuple[int, str]]:
        return [(0, f"{self.spec.paths.staging_uri}answers-0.jsonl")]

    def publish(self, tally: Tally) -> Report:
        (text,) = Publish(self.spec, ReportWriter(self.spec, self.started_at)).process(b"", tally, self.staged, [])
        return Report.model_validate_json(text)


ONE_ANSWER = Tally(read=1, answered=Counter(fresh=1))


def test_a_job_that_has_lost_a_row_publishes_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path, started_at=1.0)
    job.stage()
    with pytest.raises(RowsLostError):
        job.publish(Tally(read=2, answered=Counter(fresh=1)))
    assert [*tmp_path.glob("out/*.json*")] == []


def test_a_repeated_publication_has_the_same_answers_and_a_later_run_does_not_take_them(tmp_path: Path) -> None:
    first = Job(tmp_path, started_at=1.0)
    first.stage()
    answers = first.publish(ONE_ANSWER).answers_uris
    assert [Path(uri).read_text() for uri in answers] == ['{"id": 1, "answer": "a"}\n']
    assert first.publish(ONE_ANSWER).answers_uris == answers
    with pytest.raises(RowsLostError, match="was written and does not exist"):
        Job(tmp_path, started_at=2.0, shards=2).publish(ONE_ANSWER)
