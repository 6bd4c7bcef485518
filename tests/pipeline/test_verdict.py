"""The verdict, in small, and faults in the code that it has to find."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from plant_faults import planted

import airflow_provider_llmbeam
from tests.planted_faults import PlantedFault

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.promise(2), pytest.mark.promise(3)]

ROOT = Path(__file__).resolve().parents[2]
#: Its first case asks Gemini from a process, and is killed once, after more answers than are in flight.
SEED = 69
PROCESS, DATAFLOW, ENDPOINT = "process-gemini-jsonl", "dataflow-gemini-parquet", "endpoint-garden"
FAULTS = {
    "answers joined by position": (
        PROCESS,
        "answer of its row",
        PlantedFault(
            area="verdict",
            what="answers are given to the rows in the order of their arrival, so that rows have those of others",
            file="pipeline/engine_thread.py",
            old="new = dict(zip(missing, answers, strict=True))",
            new="new = dict(zip(missing, sorted(answers, key=repr), strict=True))",
            tests=(),
        ),
    ),
    "a retry that pays again": (
        PROCESS,
        "paid once",
        PlantedFault(
            area="verdict",
            what="answers are recorded at the end of a batch, and the retry of a killed job pays for them again",
            file="engine/journal/segment_writer.py",
            old="            file.writelines(line for _, line in self._unwritten)\n            file.flush()",
            new="            file.writelines(line for _, line in self._unwritten)",
            tests=(),
        ),
    ),
    "a teardown that is skipped": (
        ENDPOINT,
        "no GPU outside its run",
        PlantedFault(
            area="verdict",
            what="teardown looks for the endpoint in no location, and leaves it",
            file="operators/endpoint.py",
            old="sites = [(one, platform) for one in found for platform in self._platforms(one.endpoint)]",
            new="sites = []",
            tests=(),
        ),
    ),
}


def run_verdict(tree: Path, case: str, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.verdict", f"--seed={SEED}", f"--cases={case}", f"--out={out}"]
    path = os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("case", [PROCESS, DATAFLOW, ENDPOINT])
def test_a_killed_case_keeps_all_rules(case, tmp_path):
    ended = run_verdict(ROOT, case, tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert [path.stem for path in (tmp_path / "histories").iterdir()] == [case]


@pytest.mark.parametrize(("case", "rule", "fault"), FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_is_found(case, rule, fault, tmp_path):
    package = Path(airflow_provider_llmbeam.__file__).parent
    assert (package / fault.file).read_text().count(fault.old) == 1
    with planted(fault) as tree:
        ended = run_verdict(tree, case, tmp_path)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert f"{case}: {rule}: " in ended.stdout
