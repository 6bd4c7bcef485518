from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.__main__ import (
    EXIT_BAD_SPEC,
    _parser,
    _root,
    _write_outcome,
    check_model,
    main,
)


@pytest.fixture(autouse=True)
def _log_levels() -> Iterator[None]:
    logs = [logging.getLogger(name) for name in ("llmbeam", "airflow_provider_llmbeam", "apache_beam")]
    levels = [log.level for log in logs]
    yield
    for log, level in zip(logs, levels, strict=True):
        log.setLevel(level)


def raised(error: BaseException, *, during: BaseException | None = None, cause: BaseException | None = None):
    """Returns `error` after it was raised while another error was handled."""
    error.__context__ = during
    if cause is not None:
        error.__cause__ = cause
    return error


def test_an_error_without_a_cause_is_its_own_root() -> None:
    error = ValueError("a")
    assert _root(error) is error


def test_the_root_is_at_the_end_of_causes_and_contexts() -> None:
    first = OSError("disk full")
    wrapped = raised(RuntimeError("while running step"), during=first)
    assert _root(raised(RuntimeError("job"), cause=wrapped)) is first


def test_a_cause_takes_precedence_over_a_context() -> None:
    cause = ValueError("the cause")
    assert _root(raised(RuntimeError("job"), during=KeyError("beside"), cause=cause)) is cause


def raise_from_none() -> None:
    try:
        int("x")
    except ValueError:
        raise JobSpecError("the column is no number") from None


def test_an_error_raised_from_none_is_the_root_and_not_the_error_it_replaced() -> None:
    """`raise … from None` marks the previous error as irrelevant to the reader."""
    with pytest.raises(JobSpecError) as caught:
        raise_from_none()
    assert _root(caught.value) is caught.value
    assert _root(raised(RuntimeError("while running step"), during=caught.value)) is caught.value


def test_the_outcome_is_written_to_its_file_atomically(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("old")
    _write_outcome(path, {"report": {"name": "ä"}})
    assert json.loads(path.read_text()) == {"report": {"name": "ä"}}
    assert list(tmp_path.iterdir()) == [path]


def test_without_a_file_the_report_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    _write_outcome(None, {"report": {"name": "nightly"}})
    assert json.loads(capsys.readouterr().out) == {"name": "nightly"}


def test_without_a_file_an_error_is_not_printed_again(capsys: pytest.CaptureFixture[str]) -> None:
    _write_outcome(None, {"error": {"type": "JobSpecError", "message": "no"}})
    assert capsys.readouterr().out == ""


def test_other_options_are_passed_to_beam() -> None:
    options, beam_options = _parser().parse_known_args(
        ["--spec", "job.json", "--runner=X", "--res=1", "--streaming"]
    )
    assert (options.spec, options.result, options.child) == ("job.json", None, False)
    assert beam_options == ["--runner=X", "--res=1", "--streaming"]


@pytest.mark.parametrize("text", ["{", "[]", '{"name": "nightly"}', b"\xff\xfe\xfa"])
def test_an_invalid_spec_exits_with_2_and_a_reason(tmp_path: Path, text: str | bytes) -> None:
    spec, result = tmp_path / "job.json", tmp_path / "result.json"
    spec.write_bytes(text.encode() if isinstance(text, str) else text)
    assert main([f"--spec={spec}", f"--result={result}"]) == EXIT_BAD_SPEC
    error = json.loads(result.read_text())["error"]
    assert error["type"] == "JobSpecError"
    assert error["message"].endswith("Nothing was sent or billed.")


def test_a_missing_spec_exits_with_2_and_a_message(tmp_path: Path) -> None:
    spec, result = tmp_path / "job.json", tmp_path / "result.json"
    assert main([f"--spec={spec}", f"--result={result}"]) == EXIT_BAD_SPEC
    assert "job.json" in json.loads(result.read_text())["error"]["message"]


def test_a_missing_key_is_an_error_before_a_row_is_read(job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    with pytest.raises(JobSpecError, match="GOOGLE_API_KEY"):
        check_model(job(model={"type": "gemini"}))


def test_an_echo_needs_no_key(job) -> None:
    check_model(job())
