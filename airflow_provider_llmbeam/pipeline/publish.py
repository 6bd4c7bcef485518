"""The one step at the end: the sums are checked, then everything is moved in."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping

import apache_beam as beam
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems

from airflow_provider_llmbeam.exceptions import RowsLostError
from airflow_provider_llmbeam.pipeline.account import Tally, add_up
from airflow_provider_llmbeam.pipeline.report import build_report
from airflow_provider_llmbeam.pipeline.write import write_file
from airflow_provider_llmbeam.spec.job import JobSpec


class Publish(beam.DoFn):
    """Checks the sums, then moves everything in; the report last.

    Raises:
        RowsLostError: Rows in is not answered + dead letter. Nothing was moved.
    """

    def __init__(self, spec: JobSpec, staging_uri: str, started_at: float) -> None:
        self._spec = spec
        self._staging_uri = staging_uri
        self._started_at = started_at

    def process(
        self,
        _: None,
        tallies: Iterable[Tally],
        answer_files: Iterable[tuple[int, str]],
        dead_files: Iterable[tuple[int, str]],
    ) -> Iterator[str]:
        """Publishes the one result of the job."""
        tally = add_up(tallies)
        check_sums(tally)
        sink = self._spec.sink
        answers = {
            uri: f"{sink.uri}answers-{shard:05}-of-{sink.shards:05}.{sink.format}"
            for shard, uri in self._every_shard(answer_files, "answers", sink.shards, sink.format)
        }
        dead = {
            uri: f"{sink.uri}dead_letter-00000-of-00001.jsonl"
            for _, uri in self._every_shard(dead_files, "dead_letter", 1, "jsonl")
        }
        outdated = _existing(sink.uri, ("answers-*", "dead_letter-*")) - {*answers.values(), *dead.values()}
        move_in({**answers, **dead})
        report = build_report(
            self._spec,
            tally=tally,
            answers_uris=list(answers.values()),
            dead_letter_uri=next(iter(dead.values())),
            report_uri=f"{sink.uri}report.json",
            started_at=self._started_at,
            finished_at=time.time(),
        )
        text = report.model_dump_json(indent=2)
        aside = f"{self._staging_uri}report.json"
        with FileSystems.create(aside, compression_type=CompressionTypes.UNCOMPRESSED) as file:
            file.write(text.encode())
        move_in({aside: report.report_uri})
        if leftovers := outdated | _existing(self._staging_uri, ("*",)):
            FileSystems.delete(sorted(leftovers))
        yield text

    def _every_shard(
        self, written: Iterable[tuple[int, str]], prefix: str, shards: int, file_format: str
    ) -> list[tuple[int, str]]:
        """Adds empty files: a run without rows has an empty answer file, not none."""
        files = dict(written)
        for shard in set(range(shards)) - files.keys():
            files[shard] = f"{self._staging_uri}{prefix}-{shard}-empty.{file_format}"
            write_file(files[shard], (), file_format, self._spec.source.key)
        return sorted(files.items())


def move_in(files: Mapping[str, str]) -> None:
    """Renames staged files to their final names; one that a former try of the bundle has moved stays."""
    staged = [uri for uri in files if FileSystems.exists(uri)]
    FileSystems.rename(staged, [files[uri] for uri in staged])
    if missing := [final for final in files.values() if not FileSystems.exists(final)]:
        raise RowsLostError(f"{missing[0]!r} was written and is not there. A retry asks the model for nothing.")


def check_sums(tally: Tally) -> None:
    """Makes sure that no row is lost.

    Raises:
        RowsLostError: Says by how many.
    """
    answered, dead = tally.answered.total(), tally.dead.total()
    if tally.read != answered + dead:
        raise RowsLostError(
            f"{tally.read} rows read, but {answered} answered + {dead} in the dead letter = {answered + dead}. "
            "The previous output was kept; what was answered is in the journal."
        )


def _existing(directory: str, patterns: Iterable[str]) -> set[str]:
    matches = FileSystems.match([f"{directory}{pattern}" for pattern in patterns])
    return {metadata.path for match in matches for metadata in match.metadata_list}
