"""Submits small pipelines with Beam's own DataflowRunner: `dataflow_pipelines.py NAME [--option=value…]`.

Prints one JSON object: the id of the job, or what the submission failed with; with `--wait` how it ended too.
With no arguments it reads them as JSON lists, one a line, for as long as there are some.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.userstate import CombiningValueStateSpec


class Words(beam.DoFn):
    def __init__(self) -> None:
        self.words = Metrics.counter("test", "words")
        self.lengths = Metrics.distribution("test", "lengths")

    def process(self, line):
        for word in line.split():
            self.words.inc()
            self.lengths.update(len(word))
            yield word


class Flaky(beam.DoFn):
    """Notes each bundle it begins, and fails in as many as it is told."""

    def __init__(self, notes: str, failures: int) -> None:
        self.notes, self.failures = Path(notes), failures
        self.rows = Metrics.counter("test", "rows")

    def start_bundle(self):
        with self.notes.open("a") as file:
            file.write(f"{os.getpid()} {os.getppid()}\n")

    def process(self, row):
        self.rows.inc()
        if row == 3 and len(self.notes.read_text().splitlines()) <= self.failures:
            raise ValueError(f"row {row} is bad")
        yield row


class Slow(beam.DoFn):
    """Counts rows until a file tells it to go on."""

    def __init__(self, notes: str) -> None:
        self.notes = Path(notes)
        self.rows = Metrics.counter("test", "rows")

    def process(self, row):
        self.rows.inc()
        with self.notes.open("a") as file:
            file.write(f"{os.getpid()} {os.getppid()}\n")
        while not self.notes.with_suffix(".go").exists():
            time.sleep(0.05)
        yield row


class Ordered(beam.DoFn):
    """Notes the rows of each bundle in their order."""

    def __init__(self, notes: str) -> None:
        self.notes = Path(notes)

    def start_bundle(self):
        self.rows = []

    def process(self, row):
        self.rows.append(row)
        yield row

    def finish_bundle(self):
        with self.notes.open("a") as file:
            file.write(f"{self.rows}\n")


class Running(beam.DoFn):
    """Adds up, in state that a failed attempt must not leave behind."""

    TOTAL = CombiningValueStateSpec("total", sum)
    SEEN = beam.DoFn.StateParam(TOTAL)

    def __init__(self, notes: str, failures: int) -> None:
        self.notes, self.failures = Path(notes), failures

    def start_bundle(self):
        with self.notes.open("a") as file:
            file.write("bundle\n")

    def process(self, pair, total=SEEN):
        total.add(pair[1])
        if pair[1] == 4 and len(self.notes.read_text().splitlines()) <= self.failures:
            raise ValueError("lost")
        yield total.read()


def words(pipeline, given):
    lines = pipeline | beam.io.ReadFromText("gs://rows/in/*.txt")
    counted = lines | "Split" >> beam.ParDo(Words()) | beam.combiners.Count.PerElement()
    counted | beam.MapTuple(lambda word, count: f"{word} {count}") | beam.io.WriteToText(given.output)


def flaky(pipeline, given):
    rows = pipeline | beam.Create(range(5)) | "Try" >> beam.ParDo(Flaky(given.notes, int(given.failures)))
    rows | beam.combiners.Count.Globally() | beam.Map(str) | beam.io.WriteToText(given.output)
    pairs = rows | beam.Map(lambda row: ("all", row))
    totals = pairs | beam.ParDo(Running(f"{given.notes}-state", int(given.failures)))
    (
        totals
        | beam.CombineGlobally(max)
        | "Total" >> beam.Map(str)
        | "WriteTotal" >> beam.io.WriteToText(given.total)
    )


def ordered(pipeline, given):
    rows = pipeline | beam.Create(range(50)) | beam.Reshuffle() | "Note" >> beam.ParDo(Ordered(given.notes))
    rows | beam.CombineGlobally(sum) | beam.Map(str) | beam.io.WriteToText(given.output)


def staged(pipeline, given):
    def word(_):
        import extra

        return extra.WORD

    pipeline | beam.Create([1]) | beam.Map(word) | beam.io.WriteToText(given.output)


def deadly(pipeline, given):
    pipeline | beam.Create([3]) | beam.Map(os._exit)


def slow(pipeline, given):
    pipeline | beam.Create([1]) | "Wait" >> beam.ParDo(Slow(given.notes))


class Given(PipelineOptions):
    @classmethod
    def _add_argparse_args(cls, parser):
        for name in ("output", "total", "notes", "failures"):
            parser.add_argument(f"--{name}")


def main(name: str, arguments: list[str]) -> dict[str, object]:
    waits = "--wait" in arguments
    # As our own jobs do: without it each submission runs `pip freeze`.
    arguments = [*arguments, "--experiments=disable_logging_submission_environment"]
    options = PipelineOptions([one for one in arguments if one != "--wait"])
    pipeline = beam.Pipeline(options=options)
    globals()[name](pipeline, options.view_as(Given))
    try:
        result = pipeline.run()
    except Exception as error:  # noqa: BLE001 - the test reads it
        return {"error": f"{type(error).__name__}: {error}"}
    # The launcher of a template writes the job to a file, and submits none.
    told: dict[str, object] = {"id": result.job_id() if result.has_job else None}
    if not waits:
        return told
    try:
        told["state"] = result.wait_until_finish()
    except Exception as error:  # noqa: BLE001
        told["error"] = f"{type(error).__name__}: {error}"
    found = result.metrics().query()
    for kind in ("counters", "distributions"):
        for one in found[kind]:
            told[one.key.metric.name] = [one.key.step, str(one.committed), str(one.attempted)]
    return told


if __name__ == "__main__":
    orders = [sys.argv[1:]] if sys.argv[1:] else map(json.loads, sys.stdin)
    for name, *arguments in orders:
        print(json.dumps(main(name, arguments)), flush=True)
