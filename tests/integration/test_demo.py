"""The program of `scripts/demo`, run by this interpreter; CI runs the script itself, in a new clone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from importlib.metadata import distributions
from pathlib import Path

import pytest
from waiting import scaled

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(scaled(300))]
ROOT = Path(__file__).resolve().parents[2]


def test_the_demo_answers_every_installed_readme_and_leaves_nothing_running(tmp_path):
    home = tmp_path / "demo"
    command = [sys.executable, ROOT / "scripts" / "demo.py", "--home", home]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines, seen_at = [], {}
    for line in demo.stdout:
        lines.append(line.rstrip())
        seen_at[lines[-1]] = time.monotonic()
    printed = "\n".join(lines)
    assert demo.wait() == 0, printed
    demo.stdout.close()

    progress = [line for line in lines if " rows/s" in line]
    assert len(progress) >= 4, printed
    assert seen_at[progress[-1]] - seen_at[progress[0]] > 10, "progress comes while the job runs"

    packages = {found.metadata["Name"] for found in distributions()}
    rows = re.search(r"Rows +(\d+) = (\d+) answered \+ (\d+) in the dead letter", printed)
    read, answered, failed = map(int, rows.groups())
    assert (read, answered + failed) == (len(packages), read)
    assert int(re.search(r"= (\d+)% of the quota", printed)[1]) > 80
    (answers,) = home.rglob("answers-*.jsonl")
    structured = [json.loads(line) for line in answers.read_text().split("\n") if line]
    assert len(structured) == answered
    assert all({"category", "summary"} == set(row["answer"]) for row in structured)

    processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(home) not in processes
    ui = re.search(r"UI +(http://[\d.]+:\d+)/", printed)[1]
    assert ui.split(":")[-1] not in processes
