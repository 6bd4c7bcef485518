"""DocETL: one map operation over a file, with its call cache."""

from __future__ import annotations

import json
from pathlib import Path

from bench.contenders.contender import NOT_ON_UNKNOWN_QUOTAS, Contender
from bench.contenders.task import Task
from bench.contenders.vocabulary import use_bundled_vocabulary

CONTENDER = Contender(
    name="docetl",
    module="bench.contenders.docetl",
    jobs="ABCDE",
    distribution="docetl",
    requirements=("docetl==0.3.0",),
    environment={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    # It reaches 37 rows/s with its default number of threads.
    max_rows={"D": 600},
    # It always requests an object with a schema, which the sandbox fills with words of the prompt.
    is_text_checked=False,
    not_run={
        "F": "counts the tokens of a token quota with a tokenizer that it downloads",
        "G": "leaves batching to the server",
        "H": "slower than the smallest step of the quota",
        **NOT_ON_UNKNOWN_QUOTAS,
    },
    remarks="as many threads as requests in flight; in job E the quota as `rate_limits`",
)
SECONDS_PER_MINUTE = 60


def main() -> None:
    """Runs the pipeline, then reads its output file."""
    task = Task.from_command_line()
    use_bundled_vocabulary()
    import os

    directory = Path(task.directory)
    os.environ["OPENAI_API_BASE"] = task.openai_url
    os.environ["DOCETL_HOME_DIR"] = str(directory / "home")
    from docetl.api import Dataset, MapOp, Pipeline, PipelineOutput, PipelineStep

    rows, out = task.rows(), directory / "out.json"
    rows_path = directory / "rows.json"
    rows_path.write_text(json.dumps(rows))
    limits = {}
    if task.requests_per_minute is not None:
        limit = {"count": task.requests_per_minute, "per": SECONDS_PER_MINUTE, "unit": "second"}
        limits = {"rate_limits": {"llm_call": [limit]}}
    pipeline = Pipeline(
        name="bench",
        datasets={"rows": Dataset(type="file", path=str(rows_path))},
        operations=[
            MapOp(name="ask", type="map", prompt="{{ input.text }}", output={"schema": {"answer": "str"}})
        ],
        steps=[PipelineStep(name="step", input="rows", operations=["ask"])],
        output=PipelineOutput(type="file", path=str(out), intermediate_dir=str(directory / "intermediate")),
        default_model="openai/gpt-4o-mini",
        **limits,
    )
    task.wait_for_start()
    pipeline.run(max_threads=task.max_in_flight)
    task.finish({row["id"]: row.get("answer") for row in json.loads(out.read_text())})


if __name__ == "__main__":
    main()
