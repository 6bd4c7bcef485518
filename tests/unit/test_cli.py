"""`llmbeam` and its commands."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from airflow_provider_llmbeam import __version__
from airflow_provider_llmbeam.cli import llmbeam
from airflow_provider_llmbeam.endpoints.sweep import SweepManifest
from airflow_provider_llmbeam.exceptions import CloudError
from airflow_provider_llmbeam.operators.sweep import SweepEndpointsOperator
from airflow_provider_llmbeam.pipeline import command as module
from airflow_provider_llmbeam.pipeline.command import Command
from airflow_provider_llmbeam.pipeline.measure.forget.run import Forgotten


@pytest.fixture
def called(monkeypatch):
    """Commands that were executed."""
    found = []

    def execute(command):
        found.append(command)
        return 99, {}

    monkeypatch.setattr(module, "execute", execute)
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
        "import sys; from airflow_provider_llmbeam.cli import llmbeam\n"
        "llmbeam(['--help'], standalone_mode=False)\n"
        "assert not {'apache_beam', 'airflow', 'pydantic'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_the_module_is_the_command():
    command = [sys.executable, "-m", "airflow_provider_llmbeam", "--version"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == f"{__version__}\n"


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        ("run J --defer --runner=PrismRunner", {"defers": True, "beam_options": ("--runner=PrismRunner",)}),
        ("estimate J --sample-size 5", {"step": "estimate", "given": {"sample_size": 5}}),
        ("evaluate J {file}", {"step": "evaluate", "given": "{file}"}),
        ("compare J {file}", {"step": "compare", "given": "{file}"}),
        ("diff OLD J", {"step": "diff", "given": "OLD"}),
        ("preview J --dry", {"step": "preview"}),
        ("forget J --key 4", {"step": "forget"}),
    ],
)
def test_a_command_executes_a_step_and_exits_with_its_code(called, command, fields, tmp_path):
    file = tmp_path / "file.json"
    file.write_text("{}")
    ended = CliRunner().invoke(llmbeam, command.format(file=file).split())
    assert ended.exit_code == 99, ended.output
    given = {name: str(file) if value == "{file}" else value for name, value in fields.items()}
    assert called == [dataclasses.replace(called[0], spec="J", **given)]
    assert isinstance(called[0], Command)


@pytest.mark.parametrize(
    "command", ["", "fly", "run", "preview J --rows 0", "preview J --by size", "estimate J --sample-size -1"]
)
def test_a_wrong_command_says_what_is_wrong_and_exits_with_2(command):
    ended = CliRunner().invoke(llmbeam, command.split())
    assert ended.exit_code == 2
    assert "Usage: " in ended.output


def test_ctrl_c_before_the_job_begins_leaves_a_sentence(monkeypatch):
    def interrupted(command):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "execute", interrupted)
    ended = CliRunner().invoke(llmbeam, ["run", "J"])
    assert (ended.exit_code, ended.stderr) == (130, "Interrupted. The same command continues.\n")


def test_the_standard_output_is_the_manifest_alone_whatever_airflow_logs(monkeypatch):
    def sweep(task, log):
        print("2026-11-26T12:47:10Z [warning  ] Connection schemes shall not contain '_'")
        return SweepManifest()

    monkeypatch.setattr(SweepEndpointsOperator, "sweep", sweep)
    ended = CliRunner().invoke(llmbeam, ["sweep", "--location", "us-central1"])
    assert ended.exit_code == 0
    assert json.loads(ended.stdout) == SweepManifest().plain()
    assert "Connection schemes" in ended.stderr


def test_what_a_row_or_a_server_wrote_cannot_write_to_the_terminal(monkeypatch):
    nothing = dict.fromkeys(("removed", "kept", "left"), ())
    found = Forgotten(job="j", dry_run=True, fingerprints=1, unreached=("a\x1b[2J\u202eb",), **nothing)
    monkeypatch.setattr(module, "execute", lambda _: (0, {"result": found.model_dump(mode="json")}))
    text = CliRunner().invoke(llmbeam, ["forget", "J", "--key", "4"]).stdout
    assert "- a␛[2J⟨202E⟩b\n" in text
    assert not {"\x1b", "\u202e"} & {*text, *CliRunner().invoke(llmbeam, ["forget", "J", "--json"]).stdout}

    def refused(task, log):
        raise CloudError("no \x1b[2J")

    monkeypatch.setattr(SweepEndpointsOperator, "sweep", refused)
    assert CliRunner().invoke(llmbeam, ["sweep", "--location", "l"]).stderr.endswith("no ␛[2J\n")


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        (
            "llmbeam_sandbox",
            "`llmbeam-sandbox`, which is not installed here: `pip install` its wheel, or `./sandbox` in a clone "
            "of this project.",
        ),
        ("llmbeam_sandbox.core", "ModuleNotFoundError: no llmbeam_sandbox.core"),
    ],
)
def test_without_the_sandbox_its_command_says_what_to_install_and_hides_no_other_fault(missing, sentence):
    code = (
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(name, *_):\n"
        f"        if name == {missing!r}: raise ModuleNotFoundError(f'no {{name}}', name=name)\n"
        "sys.meta_path.insert(0, Finder)\n"
        "from airflow_provider_llmbeam.cli import llmbeam; llmbeam()"
    )
    ended = subprocess.run([sys.executable, "-c", code, "sandbox"], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert sentence in ended.stderr
