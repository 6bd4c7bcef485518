"""Our engine through its command line: `python -m airflow_provider_llmbeam.pipeline --spec JOB.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.contenders.contender import Contender
from bench.contenders.task import Task

CONTENDER = Contender(
    name="ours",
    module="bench.contenders.ours",
    jobs="ABCDEFGHIJ",
    distribution="airflow-provider-llmbeam",
    supports_processes=True,
    remarks="the whole job: reads files, keeps the journal, answers rows, writes files and the report",
)
SEPARATE_MACHINES = Contender(
    name="ours, a machine each",
    module="bench.contenders.ours",
    jobs="BEF",
    distribution="airflow-provider-llmbeam",
    supports_processes=True,
    has_machines=True,
    remarks="worker processes that do not communicate, as on several machines",
)
JOB_NAME = "bench"
#: Number of rows that are planned together on a static-batch server, as in the padding study.
MAX_BATCH_SIZE = 10_000


def main() -> None:
    """Runs the job, then reads its output."""
    task = Task.from_command_line()
    directory = Path(task.directory)
    spec_path, result_path, out = directory / "spec.json", directory / "result.json", directory / "out"
    spec_path.write_text(json.dumps(spec_of(task, out)))
    # Imported before the common start of all processes, as importing Beam takes about 2 s.
    from airflow_provider_llmbeam.pipeline.__main__ import main as pipeline

    task.wait_for_start()
    status = pipeline(["--spec", str(spec_path), "--result", str(result_path)])
    if status:
        raise SystemExit(status)
    answers = {row["id"]: row["answer"] for path in out.glob("answers-*") for row in _lines(path)}
    task.finish(answers, _figures(json.loads((out / "report.json").read_text()), task))


def spec_of(task: Task, out: Path) -> dict[str, Any]:
    """Converts the task to a job spec."""
    model: dict[str, Any] = {"type": "gemini", "name": "gemini-2.5-flash", "base_url": task.url}
    batching: dict[str, Any] = {}
    if task.padded_tokens_per_second is not None:
        model = {"type": "echo", "padded_tokens_per_second": task.padded_tokens_per_second}
        batching = {"max_padded_tokens": task.max_padded_tokens, "max_batch_size": MAX_BATCH_SIZE}
    return {
        "name": JOB_NAME,
        "source": {"type": "files", "uri": task.rows_path, "key": ["id"]},
        "prompt": {"template": "{{ row.text }}"},
        "model": model,
        "generation": {"max_output_tokens": 1024},
        "limits": {
            "requests_per_minute": task.requests_per_minute,
            "tokens_per_minute": task.tokens_per_minute,
            "max_in_flight": task.max_in_flight,
            "expected_workers": task.machines,
        },
        "batching": batching,
        "sink": {"type": "files", "uri": str(out)},
    }


def _figures(report: dict[str, Any], task: Task) -> dict[str, float]:
    if task.padded_tokens_per_second is None:
        return {}
    return {"padding_ratio": report["padding_ratio"], "sending_seconds": report["sending_seconds"]}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    main()
