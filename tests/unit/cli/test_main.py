"""`llmbeam` and its commands."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from airflow_provider_llmbeam import __version__
from airflow_provider_llmbeam.cli.main import llmbeam
from airflow_provider_llmbeam.pipeline import __main__ as entry_point


@pytest.fixture
def called(monkeypatch):
    """Arguments with which the entry point of the pipeline was called."""
    found = []

    def main(arguments):
        found.append(arguments)
        return 99

    monkeypatch.setattr(entry_point, "main", main)
    return found


@pytest.mark.parametrize("command", [(), *((name,) for name in llmbeam.commands)], ids=" ".join)
def test_the_help_of_a_command_fits_a_screen(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    shown = CliRunner().invoke(llmbeam, [*command, "--help"], terminal_width=100)
    assert shown.exit_code == 0
    lines = shown.output.splitlines()
    assert lines
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100


def test_the_help_imports_neither_beam_nor_airflow():
    code = (
        "import sys; from airflow_provider_llmbeam.cli.main import llmbeam\n"
        "llmbeam(['--help'], standalone_mode=False)\n"
        "assert not {'apache_beam', 'airflow', 'pydantic'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_the_module_is_the_command():
    command = [sys.executable, "-m", "airflow_provider_llmbeam", "--version"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == f"{__version__}\n"


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("run J --defer --runner=PrismRunner", ("--spec=J", "--defer", "--runner=PrismRunner")),
        ("estimate J --sample-size 5", ("--spec=J", "--estimate", "--sample-size=5")),
        ("evaluate J {file}", ("--spec=J", "--evaluate={file}")),
        ("compare J {file}", ("--spec=J", "--compare={file}")),
    ],
)
def test_a_command_is_a_call_of_the_entry_point_and_exits_with_its_code(called, command, arguments, tmp_path):
    file = tmp_path / "file.json"
    file.write_text("{}")
    ended = CliRunner().invoke(llmbeam, command.format(file=file).split())
    assert ended.exit_code == 99, ended.output
    assert called == [tuple(each.format(file=file) for each in arguments)]


def test_a_preview_that_fails_exits_with_the_code_of_the_entry_point(called):
    assert CliRunner().invoke(llmbeam, ["preview", "J"]).exit_code == 99
    assert called[0][0] == "--spec=J"


@pytest.mark.parametrize(
    "command", ["", "fly", "run", "preview J --rows 0", "preview J --by size", "estimate J --sample-size -1"]
)
def test_a_wrong_command_says_what_is_wrong_and_exits_with_2(command):
    ended = CliRunner().invoke(llmbeam, command.split())
    assert ended.exit_code == 2
    assert "Usage: " in ended.output


def test_ctrl_c_before_the_job_begins_leaves_a_sentence(monkeypatch):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(entry_point, "main", interrupted)
    ended = CliRunner().invoke(llmbeam, ["run", "J"])
    assert (ended.exit_code, ended.stderr) == (130, "Interrupted. The same command continues.\n")
