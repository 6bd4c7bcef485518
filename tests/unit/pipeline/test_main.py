from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline import steps
from airflow_provider_llmbeam.pipeline.__main__ import _parser, main, write_outcome
from airflow_provider_llmbeam.pipeline.command import EXIT_BAD_SPEC
from airflow_provider_llmbeam.pipeline.launch.interruption import what_remains
from airflow_provider_llmbeam.pipeline.launch.keys import check_model
from airflow_provider_llmbeam.spec.protocol.steps import STEPS


@pytest.fixture(autouse=True)
def _log_levels() -> Iterator[None]:
    logs = [logging.getLogger(name) for name in ("llmbeam", "airflow_provider_llmbeam", "apache_beam")]
    levels = [log.level for log in logs]
    yield
    for log, level in zip(logs, levels, strict=True):
        log.setLevel(level)


def test_the_outcome_is_written_to_its_file_atomically(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("old")
    write_outcome(path, {"report": {"name": "ä"}})
    assert json.loads(path.read_text()) == {"report": {"name": "ä"}}
    assert list(tmp_path.iterdir()) == [path]


def test_without_a_file_the_report_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    write_outcome(None, {"report": {"name": "nightly"}})
    assert json.loads(capsys.readouterr().out) == {"name": "nightly"}


def test_without_a_file_an_error_is_not_printed_again(capsys: pytest.CaptureFixture[str]) -> None:
    write_outcome(None, {"error": {"type": "JobSpecError", "message": "no"}})
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


@pytest.mark.parametrize("address", ["http://h/job.json", "foo://job.json", "s3://b/job.json", "job\0.json"])
def test_a_spec_that_is_neither_local_nor_on_cloud_storage_exits_with_2_and_a_message(
    tmp_path: Path, address: str
) -> None:
    result = tmp_path / "result.json"
    assert main([f"--spec={address}", f"--result={result}"]) == EXIT_BAD_SPEC
    message = json.loads(result.read_text())["error"]["message"]
    assert message.startswith(f"`--spec` {address!r} cannot be read: ")
    assert message.endswith(". Expected a file, local or on gs://. Nothing was sent or billed.")


@pytest.mark.parametrize("runner", ["Nonsense", "nonsense.Runner", "os.Nonsense"])
def test_an_unknown_runner_exits_with_2_and_a_message(job, tmp_path: Path, runner: str) -> None:
    spec, result = tmp_path / "job.json", tmp_path / "result.json"
    spec.write_text(job(sink={"uri": str(tmp_path / "out")}).model_dump_json())
    assert main([f"--spec={spec}", f"--result={result}", f"--runner={runner}"]) == EXIT_BAD_SPEC
    message = json.loads(result.read_text())["error"]["message"]
    assert message.startswith("The options of Beam: ")
    assert "onsense" in message


@pytest.mark.parametrize("step", ["evaluate", "compare", "forget", "diff"])
def test_a_step_without_its_input_says_what_is_missing_and_does_not_run_the_job(
    job, tmp_path: Path, step: str
) -> None:
    spec, result = tmp_path / "job.json", tmp_path / "result.json"
    spec.write_text(job(sink={"uri": str(tmp_path / "out")}).model_dump_json())
    assert main([f"--spec={spec}", f"--result={result}", f"--step={step}"]) == EXIT_BAD_SPEC
    assert "Nothing was sent or billed." in json.loads(result.read_text())["error"]["message"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--input=rows.json"], "`--input`: step 'run' takes none."),
        (["--step=submit", "--input=rows.json"], "`--input`: step 'submit' takes none."),
        (
            ["--step=estimate", "--sample-size=5"],
            "`--sample-size`: step 'estimate' takes `--input`, and no options of Beam.",
        ),
        (["--step=diff", "--input=missing.json"], "'missing.json' cannot be read: No such file or directory."),
    ],
)
def test_an_input_or_an_option_that_would_be_ignored_or_is_missing_ends_the_command_with_one_sentence(
    job, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    spec, result = tmp_path / "job.json", tmp_path / "result.json"
    spec.write_text(job(sink={"uri": str(tmp_path / "out")}).model_dump_json())
    assert main([f"--spec={spec}", f"--result={result}", *arguments]) == EXIT_BAD_SPEC
    message = json.loads(result.read_text())["error"]["message"]
    assert message == f"{sentence} Nothing was sent or billed."
    assert not (tmp_path / "out").exists()


def test_every_step_has_a_function() -> None:
    assert steps._FUNCTIONS.keys() == STEPS.keys()


@pytest.mark.parametrize("name", ["missing/result.json", "."])
def test_a_result_that_cannot_be_written_ends_the_command_before_anything_is_read(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert main(["--spec=missing.json", f"--result={tmp_path / name}"]) == EXIT_BAD_SPEC
    (message,) = caplog.messages
    assert message.startswith(f"`--result` {str(tmp_path / name)!r} cannot be written: ")
    assert message.endswith(" Nothing was sent or billed.")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_key_is_an_error_before_a_row_is_read(job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    with pytest.raises(JobSpecError, match="GOOGLE_API_KEY"):
        check_model(job(model={"type": "gemini"}))


def test_an_echo_needs_no_key(job) -> None:
    check_model(job())


def test_an_interrupted_job_names_its_journal(job) -> None:
    assert what_remains(job()) == (
        "The answers so far are in 'out/.llmbeam/nightly/journal/'; the same command sends only the rest."
    )


def test_an_interrupted_job_on_dataflow_may_still_be_billing(job) -> None:
    runner = {"type": "dataflow", "project": "my-project", "location": "us-central1"}
    spec = job(
        source={"uri": "gs://b/in.jsonl", "key": ["id"]},
        sink={"uri": "gs://b/out"},
        state_uri="gs://b/state",
        runner=runner,
    )
    assert "may be running, and billing, on Dataflow: the same command finds it" in what_remains(spec)


def test_an_interruption_before_the_spec_is_read_has_sent_nothing() -> None:
    assert what_remains(None) == "Nothing was sent or billed."
