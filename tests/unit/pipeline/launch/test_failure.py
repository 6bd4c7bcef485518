from __future__ import annotations

import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.exceptions import (
    JobFailedError,
    JobSpecError,
    NothingAnsweredError,
    RowsLostError,
    error_in,
)
from airflow_provider_llmbeam.pipeline.launch.failure import own_error, root, sentence


def raised(error: BaseException, *, during: BaseException | None = None, cause: BaseException | None = None):
    """Returns `error` after it was raised while another error was handled."""
    error.__context__ = during
    if cause is not None:
        error.__cause__ = cause
    return error


def test_an_error_without_a_cause_is_its_ownroot() -> None:
    error = ValueError("a")
    assert root(error) is error


def test_the_root_is_at_the_end_of_causes_and_contexts() -> None:
    first = OSError("disk full")
    wrapped = raised(RuntimeError("while running step"), during=first)
    assert root(raised(RuntimeError("job"), cause=wrapped)) is first


def test_a_cause_takes_precedence_over_a_context() -> None:
    cause = ValueError("the cause")
    assert root(raised(RuntimeError("job"), during=KeyError("beside"), cause=cause)) is cause


def raise_from_none() -> None:
    try:
        int("x")
    except ValueError:
        raise JobSpecError("the column is no number") from None


def test_an_error_raised_from_none_is_the_root_and_not_the_error_it_replaced() -> None:
    """`raise … from None` marks the previous error as irrelevant to the reader."""
    with pytest.raises(JobSpecError) as caught:
        raise_from_none()
    assert root(caught.value) is caught.value
    assert root(raised(RuntimeError("while running step"), during=caught.value)) is caught.value


SENTENCE = '`source.key`: 2 keys belong to several rows each: {"id": 0}. Nothing was sent or billed.'


def traceback_of_a_worker(error: Exception, step: str | None = "MakeRequest") -> str:
    """Returns what a worker process of Beam reports: an error, and the one that Beam makes of it with its step."""
    try:
        try:
            raise error
        except Exception as first:
            if step is None:
                raise
            raise type(first)(f"{first} [while running '{step}']").with_traceback(first.__traceback__)  # noqa: B904
    except type(error):
        return traceback.format_exc()


@pytest.mark.parametrize(
    "around",
    [
        "{}",  # a worker process of the local runner
        "Pipeline job-001 failed in state FAILED: bundle inst007 stage-007 failed:{}",  # Prism
        "Pipeline j_1 failed in state FAILED: java.lang.RuntimeException: Error received from SDK harness for "
        "instruction 4: {}",  # Flink
        "{}\n\tat org.apache.beam.runners.fnexecution.control.FnApiControlClient.handle(Client.java:180)",
    ],
)
@pytest.mark.parametrize("step", ["MakeRequest", None])
def test_an_error_of_a_worker_in_another_process_keeps_its_class_and_its_sentence(around, step) -> None:
    error = own_error(RuntimeError(around.format(traceback_of_a_worker(JobSpecError(SENTENCE), step))))
    assert type(error) is JobSpecError
    assert str(error) == SENTENCE


def test_an_error_of_a_worker_is_found_in_the_text_of_any_error_of_a_chain() -> None:
    """Beam raises `Bundle processing … has failed` from the error with the traceback."""
    inner = RuntimeError(traceback_of_a_worker(RowsLostError("3 rows are lost.")))
    outer = raised(RuntimeError("Bundle processing associated with inst007 has failed."), cause=inner)
    last = raised(outer, during=OSError("closed"))
    assert type(own_error(last)) is RowsLostError


def test_an_error_of_this_process_does_not_name_the_step_of_beam() -> None:
    error = own_error(JobSpecError(f"{SENTENCE} [while running 'MakeRequest']"))
    assert (type(error), str(error)) == (JobSpecError, SENTENCE)


def test_an_error_in_a_group_of_a_worker_is_found() -> None:
    def raise_group() -> None:
        raise ExceptionGroup("two tasks", [NothingAnsweredError("every row failed."), ValueError("x")])

    with pytest.raises(ExceptionGroup) as caught:
        raise_group()
    text = "".join(traceback.format_exception(caught.value))
    error = own_error(RuntimeError(text))
    assert (type(error), str(error)) == (NothingAnsweredError, "every row failed.")


def test_the_error_that_replaced_another_one_of_this_package_is_reported() -> None:
    try:
        try:
            raise JobSpecError("the first.")
        except JobSpecError as first:
            raise JobFailedError("the second.") from first
    except JobFailedError:
        text = traceback.format_exc()
    error = own_error(RuntimeError(text))
    assert (type(error), str(error)) == (JobFailedError, "the second.")


# Words of a server or of a library, as they may follow in a message: any lines without a mark of Beam.
lines = st.lists(
    st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1)
    .map(lambda line: f"x{line.strip()}x")
    .filter(lambda line: "[while running" not in line and "exceptions." not in line),
    min_size=1,
    max_size=4,
)


@given(lines)
def test_every_line_of_a_message_is_kept(parts: list[str]) -> None:
    message = "\n".join(parts)
    assert str(error_in(traceback_of_a_worker(JobFailedError(message)))) == message


def test_an_error_of_another_package_is_not_ours_and_its_last_line_is_its_sentence() -> None:
    error = RuntimeError(f"failed: {traceback_of_a_worker(OSError('disk full'), 'Write')}")
    assert own_error(error) is None
    assert sentence(error) == "OSError: disk full."


def test_the_words_of_another_error_become_one_short_sentence() -> None:
    assert sentence(ValueError("a\n  b.")) == "ValueError: a b."
    assert len(sentence(RuntimeError("panic\n" + "goroutine 1\n" * 900))) < 510
