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
PROCESS, DATAFLOW = "process-gemini-jsonl", "dataflow-gemini-parquet"
ENDPOINT, CLOUD_RUN = "endpoint-garden", "endpoint-cloud_run"
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
            what="answers are not recorded, and the retry of a killed job pays for them again",
            file="engine/journal/segment_writer.py",
            old="            file.writelines(line for _, line in self._unwritten)\n            file.flush()",
            new="            file.flush()",
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
    "a sink that appends on retry": (
        PROCESS,
        "every row once",
        PlantedFault(
            area="verdict",
            what="the rows that a retry takes from the journal are written twice",
            file="pipeline/transforms/write.py",
            old="    line = encode_record(answer_record(found, columns))",
            new="    line = encode_record(answer_record(found, columns)) * (1 + (found.origin == 'resumed'))",
            tests=(),
        ),
    ),
    "a retried row that is answered by its neighbour": (
        PROCESS,
        "answer of its row",
        PlantedFault(
            area="verdict",
            what="each prompt in the journal has the answer of the next one",
            file="pipeline/transforms/reuse.py",
            old=(
                "    for entry in _entries(uri, oldest_at):\n"
                "        yield entry.fingerprint, (entry.job, entry.outcome)"
            ),
            new=(
                "    entries = [*_entries(uri, oldest_at)]\n"
                "    for entry, other in zip(entries, entries[1:] + entries[:1], strict=True):\n"
                "        yield entry.fingerprint, (entry.job, other.outcome)"
            ),
            tests=(),
        ),
    ),
    "a refused prompt that is published as an empty answer": (
        PROCESS,
        "answer of its row",
        PlantedFault(
            area="verdict",
            what="a row that the server refused is published with an empty answer, which nobody paid for",
            file="engine/engine.py",
            old="        failures = failures_of(request, self._failed(error, request))\n",
            new=(
                "        self._failed(error, request)\n"
                "        reply = Reply(text='', finish_reason='stop', tokens=error.tokens, model='gemini')\n"
                "        bill = self._bill(error, request)\n"
                "        failures = [completion_of(reply, None, bill, request, 0.0, 0, is_first=True)]\n"
            ),
            tests=(),
        ),
    ),
    "a few prompts that are sent twice without a kill": (
        PROCESS,
        "paid once",
        PlantedFault(
            area="verdict",
            what="one prompt in twenty is sent twice, and one of its answers is thrown away",
            file="engine/engine.py",
            old="                    replies = [await tier.backend.complete(*prompts)]",
            new=(
                "                    twice = range(1 + (request.number % 20 == 7))\n"
                "                    replies = [await tier.backend.complete(*prompts) for _ in twice][:1]"
            ),
            tests=(),
        ),
    ),
    "two GPUs where one was asked for": (
        CLOUD_RUN,
        "no GPU that was not asked for",
        PlantedFault(
            area="verdict",
            what="a service keeps twice the instances of its spec",
            file="endpoints/platforms/cloud_run.py",
            old='{"min_instance_count": spec.min_instances, "max_instance_count": spec.max_instances}',
            new='{"min_instance_count": 2 * spec.max_instances, "max_instance_count": 2 * spec.max_instances}',
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
