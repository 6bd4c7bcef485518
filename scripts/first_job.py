"""Runs what somebody runs first after `pip install`, with the Python that has both wheels: a job of ten rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from llmbeam_sandbox import Sandbox


def main() -> int:
    """Runs the commands; returns the exit status of the first that failed, or 1 if there are not ten answers."""
    llmbeam = str(Path(sys.executable).with_name("llmbeam"))
    with tempfile.TemporaryDirectory() as folder, Sandbox() as sandbox:
        place = Path(folder)
        rows = [{"id": number, "text": f"row {number}"} for number in range(10)]
        (place / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        job = {
            "name": "first",
            "source": {"uri": f"{place}/in.jsonl", "key": ["id"]},
            "prompt": {"template": "Say it: {{ row.text }}"},
            "model": {"type": "gemini", "name": "gemini-2.5-flash", "base_url": sandbox.gemini_url},
            "sink": {"uri": f"{place}/out"},
            "state_uri": f"{place}/state",
        }
        (place / "job.json").write_text(json.dumps(job))
        environment = {**os.environ, "HOME": folder, "AIRFLOW_HOME": f"{place}/airflow", "GOOGLE_API_KEY": "k"}
        imports = "import airflow_provider_llmbeam.beam, airflow_provider_llmbeam.operators"
        for command in (
            [sys.executable, "-c", imports],
            [llmbeam, "doctor"],
            [llmbeam, "run", f"{place}/job.json"],
        ):
            ended = subprocess.run(command, env=environment, check=False)
            if ended.returncode:
                return ended.returncode
        answers = [line for path in place.glob("out/answers-*") for line in path.read_text().splitlines()]
        print(f"{len(answers)} answers")
        return int(len(answers) != len(rows))


if __name__ == "__main__":
    sys.exit(main())
