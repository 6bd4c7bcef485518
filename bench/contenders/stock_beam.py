"""Stock Beam: `RunInference` with Beam's own Gemini handler, on the same runner, in one process."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.contenders.contender import Contender
from bench.contenders.task import Task

_MAX_ROWS = {"C": 60, "D": 60, "E": 60, "F": 60, "G": 4000, "H": 150}
_MODULE = "bench.contenders.stock_beam"

CONTENDER = Contender(
    name="stock Beam",
    module=_MODULE,
    jobs="ABCDEFGHI",
    distribution="apache-beam",
    options={"batch_size": 1},
    max_rows=_MAX_ROWS,
    not_run={"J": "sends one request at a time: it would take ten minutes"},
    remarks="GeminiModelHandler, batch size 1: the only one that loses no row (job G: a padded handler, 32)",
)
WITH_DEFAULTS = Contender(
    name="stock Beam, default batches",
    module=_MODULE,
    jobs="AB",
    distribution="apache-beam",
    options={"batch_size": None},
    remarks="GeminiModelHandler with its default settings",
    not_run=dict.fromkeys("CDEFHIJ", "loses most rows, so its other figures are meaningless")
    | {"G": "the handler of that job has no default batch size"},
)


def main() -> None:
    """Runs the rows and stores each answer when it arrives."""
    task = Task.from_command_line()
    import apache_beam as beam
    from apache_beam.ml.inference.base import KeyedModelHandler, RunInference
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    task.wait_for_start()
    answers_path = Path(task.directory) / "answers.jsonl"
    answers_path.unlink(missing_ok=True)
    rows = [(row["id"], row["text"]) for row in task.rows()]
    handler = _padded_handler(task) if task.padded_tokens_per_second else _gemini_handler(task)
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        (
            pipeline
            | beam.Create(rows, reshuffle=False)
            | RunInference(KeyedModelHandler(handler))
            | beam.Map(_store, str(answers_path))
        )
    answers = [json.loads(line) for line in answers_path.read_text().splitlines()]
    task.finish(dict(answers), _padding_figures(task))


def _gemini_handler(task: Task) -> Any:
    from apache_beam.ml.inference.gemini_inference import GeminiModelHandler, generate_from_string

    os.environ["GOOGLE_GEMINI_BASE_URL"] = task.url
    size = task.options["batch_size"]
    sizes = {} if size is None else {"min_batch_size": size, "max_batch_size": size}
    return GeminiModelHandler("gemini-2.5-flash", generate_from_string, api_key="bench", **sizes)


def _store(keyed: tuple[int, Any], path: str) -> None:
    key, result = keyed
    text = result.inference if isinstance(result.inference, str) else result.inference.text
    with Path(path).open("a") as file:
        file.write(json.dumps([key, text]) + "\n")


def _padded_handler(task: Task) -> Any:
    from apache_beam.ml.inference.base import ModelHandler, PredictionResult

    class PaddedHandler(ModelHandler[str, Any, threading.Lock]):
        """Emulates a static-batch server: a batch costs its size times the tokens of its longest prompt.

        The bucket boundaries are Beam's defaults, which have no effect in batch mode (Beam 2.77).
        """

        def load_model(self) -> threading.Lock:
            return threading.Lock()

        def batch_elements_kwargs(self) -> dict[str, Any]:
            return {"min_batch_size": 32, "max_batch_size": 32, "length_fn": len}

        def run_inference(
            self, batch: Sequence[str], model: threading.Lock, inference_args: dict[str, Any] | None = None
        ) -> Iterable[Any]:
            tokens = [-(-len(text.encode()) // 4) for text in batch]
            padded = len(tokens) * max(tokens)
            with model, (Path(task.directory) / "batches.jsonl").open("a") as file:
                started_at = time.time()
                time.sleep(padded / float(task.padded_tokens_per_second or 1))
                file.write(json.dumps([sum(tokens), padded, started_at, time.time()]) + "\n")
            yield from (PredictionResult(text, text) for text in batch)

    return PaddedHandler()


def _padding_figures(task: Task) -> dict[str, float]:
    if not task.padded_tokens_per_second:
        return {}
    batches = list(_batches(Path(task.directory) / "batches.jsonl"))
    tokens, padded = sum(batch[0] for batch in batches), sum(batch[1] for batch in batches)
    return {"padding_ratio": 1 - tokens / padded, "sending_seconds": batches[-1][3] - batches[0][2]}


def _batches(path: Path) -> Iterator[list[float]]:
    for line in path.read_text().splitlines():
        yield json.loads(line)


if __name__ == "__main__":
    main()
