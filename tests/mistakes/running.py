"""Runs a mistake through the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from llmbeam_sandbox import Fault, ModelSettings, Sandbox

from airflow_provider_llmbeam.pipeline.__main__ import main
from tests.mistakes.mistake import ROWS, Mistake

MODELS = ModelSettings(any_model=False)
MODEL = "gemini.generateContent"
FAULTS = {
    "refuses the key": Fault(kind="error", http_status=401, message="API key not valid."),
    "refuses the request": Fault(kind="error", http_status=400, message="Tool use is not supported."),
}


class Ended(NamedTuple):
    """End of a run.

    Attributes:
        code: Exit code of the command.
        message: Message of its error.
        requests: Number of requests that the model received.
    """

    code: int
    message: str
    requests: int


def write_files(mistake: Mistake, directory: Path, text: str) -> None:
    """Writes the rows of a mistake, each with a text, and its other files."""
    rows = [{"id": number, "text": f"{text} {number}: it is fine."} for number in range(ROWS)]
    (directory / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    golden = [row | {"expected_mood": "good"} for row in rows[:10]]
    (directory / "golden.jsonl").write_text("".join(json.dumps(row) + "\n" for row in golden))
    for name, content in mistake.files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def run(mistake: Mistake, sandbox: Sandbox, directory: Path) -> Ended:
    """Runs a job in a directory, which is the current one.

    Args:
        mistake: The mistake.
        sandbox: Server of the model, without earlier requests.
        directory: An empty directory.
    """
    if mistake.server != "answers":
        sandbox.faults.every(MODEL, 1, FAULTS[mistake.server])
    write_files(mistake, directory, "Review")
    spec, result = directory / "job.json", directory / "result.json"
    spec.write_text(json.dumps(mistake.spec(sandbox.gemini_url)))
    arguments = [f"--spec={spec}", f"--result={result}"]
    if mistake.found == "evaluation":
        evaluation = directory / "evaluation.json"
        evaluation.write_text(json.dumps(mistake.evaluation_spec))
        arguments += ["--step=evaluate", f"--input={evaluation}"]
    if mistake.found == "review":
        sample = directory / "sample.json"
        sample.write_text(json.dumps(mistake.sample))
        arguments += ["--step=sample_answers", f"--input={sample}"]
    code = main(arguments)
    message = json.loads(result.read_text()).get("error", {}).get("message", "")
    return Ended(code, message, len(sandbox.requests))
