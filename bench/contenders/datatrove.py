"""datatrove: `InferenceRunner` with an endpoint server and checkpoints."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from bench.contenders.contender import NOT_ON_UNKNOWN_QUOTAS, Contender
from bench.contenders.task import Task

CONTENDER = Contender(
    name="datatrove",
    module="bench.contenders.datatrove",
    jobs="ABCD",
    distribution="datatrove",
    # Not `datatrove[inference]`, which installs 8 GB of vLLM.
    requirements=("datatrove[io]==0.10.1", "httpx==0.28.1", "aiosqlite==0.22.1", "aiofiles==25.1.0"),
    not_run={
        "E": "does not support quotas, and stops at the first 429",
        "F": "does not support quotas, and stops at the first 429",
        "G": "leaves batching to the server",
        "H": "stops at the first 429",
        **NOT_ON_UNKNOWN_QUOTAS,
    },
    remarks="endpoint server, chunks of 50 records, checkpoints in the job's directory",
)


def main() -> None:
    """Runs the pipeline; rows that it wrote before an error count as answered."""
    task = Task.from_command_line()
    from datatrove.data import Document
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.inference.run_inference import InferenceConfig, InferenceRunner
    from datatrove.pipeline.writers import JsonlWriter

    directory = Path(task.directory)
    config = InferenceConfig(
        server_type="endpoint",
        endpoint_url=task.url,
        model_name_or_path="stub-model",
        max_concurrent_generations=task.max_in_flight,
    )

    async def ask(document: Any, generate: Callable[[dict[str, Any]], Awaitable[Any]]) -> str:
        answer = await generate({"messages": [{"role": "user", "content": document.text}]})
        return str(answer.text)

    runner = InferenceRunner(
        rollout_fn=ask,
        config=config,
        checkpoints_local_dir=str(directory / "checkpoints"),
        records_per_chunk=50,
        output_writer=JsonlWriter(
            str(directory / "out"), output_filename="${rank}_chunk_${chunk_index}.jsonl", compression=None
        ),
    )
    documents = [Document(id=str(row["id"]), text=row["text"]) for row in task.rows()]
    task.wait_for_start()
    try:
        LocalPipelineExecutor(
            pipeline=[documents, runner], logging_dir=str(directory / "logs"), tasks=1, skip_completed=True
        ).run()
    finally:
        task.finish(dict(_answers(directory / "out")))


def _answers(directory: Path) -> Iterator[tuple[int, str | None]]:
    for path in directory.glob("**/*.jsonl"):
        for line in path.read_text().splitlines():
            document = json.loads(line)
            results = (document.get("metadata") or {}).get("rollout_results") or [None]
            yield int(document["id"]), results[0] if isinstance(results[0], str) else None


if __name__ == "__main__":
    main()
