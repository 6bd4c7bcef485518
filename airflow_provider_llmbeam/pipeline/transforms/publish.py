"""The last step: checks the sums, then publishes all files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import apache_beam as beam

from airflow_provider_llmbeam.exceptions import NothingAnsweredError, RowsLostError, TooManyFailedRowsError
from airflow_provider_llmbeam.pipeline import sinks, storage
from airflow_provider_llmbeam.pipeline.reporting.report import EstimateAccuracy, RunUsage, build_report
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally, add_up
from airflow_provider_llmbeam.pipeline.secrets import load_environment
from airflow_provider_llmbeam.pipeline.sinks.files import move_in
from airflow_provider_llmbeam.pipeline.sources import bigquery
from airflow_provider_llmbeam.pipeline.transforms.write import write_file
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.source import BigQuerySource


class Publish(beam.DoFn):
    """Checks the sums, then publishes: the dead letter, the answers, and the report last.

    Raises:
        RowsLostError: Rows read are not answered + dead letter. Nothing was published.
        TooManyFailedRowsError: More rows failed than `limits.max_dead_letter_ratio` allows. The dead letter was
            published, and the previous answers were kept.
    """

    def __init__(
        self,
        spec: JobSpec,
        started_at: float,
        estimate_accuracy: Callable[[JobSpec, RunUsage], EstimateAccuracy | None] | None = None,
    ) -> None:
        self._spec = spec
        self._started_at = started_at
        self._estimate_accuracy = estimate_accuracy

    def setup(self) -> None:
        """Sets the keys of the sink, if no other step on this worker has set them."""
        load_environment(self._spec.environment_secrets)

    def process(
        self,
        _: bytes,
        tallies: Iterable[Tally],
        answer_files: Iterable[tuple[int, str]],
        failed_files: Iterable[tuple[int, str]],
    ) -> Iterator[str]:
        """Publishes the result of the job."""
        spec, staging_uri, output_uri = self._spec, self._spec.staging_uri, self._spec.output_uri
        tally = add_up(tallies)
        check_sums(tally)
        dead_letter_uri = f"{output_uri}dead_letter-00000-of-00001.jsonl"
        (failed,) = self._every_shard(failed_files, "dead_letter", 1, "jsonl").values()
        move_in({failed: dead_letter_uri})
        check_ratio(tally, spec.limits.max_dead_letter_ratio, dead_letter_uri)
        file_format, shards = sinks.staged_as(spec.sink)
        answers_uris = sinks.publish(spec, self._every_shard(answer_files, "answers", shards, file_format))
        report = build_report(
            spec,
            tally=tally,
            answers_uris=answers_uris,
            dead_letter_uri=dead_letter_uri,
            report_uri=f"{output_uri}report.json",
            started_at=self._started_at,
            finished_at=time.time(),
            estimate_accuracy=self._estimate_accuracy,
        )
        text = report.model_dump_json(indent=2)
        staged = f"{staging_uri}report.json"
        with storage.create(staged) as file:
            file.write(text.encode())
        move_in({staged: report.report_uri})
        storage.delete(storage.match(f"{staging_uri}*"))
        if isinstance(spec.source, BigQuerySource):
            bigquery.discard(spec.export_uri)
        yield text

    def _every_shard(
        self, written: Iterable[tuple[int, str]], prefix: str, shards: int, file_format: str
    ) -> dict[int, str]:
        """Adds an empty file per missing shard, so that a run without rows has an answer file."""
        files = dict(written)
        for shard in set(range(shards)) - files.keys():
            files[shard] = f"{self._spec.staging_uri}{prefix}-{shard}-empty.{file_format}"
            has_vectors = self._spec.embedding is not None
            write_file(files[shard], (), file_format, self._spec.source.key, has_vectors=has_vectors)
        return files


def check_sums(tally: Tally) -> None:
    """Checks that no row is lost.

    Raises:
        RowsLostError: The sums differ; the message has the numbers.
    """
    answered, failed = tally.answered.total(), tally.failed.total()
    if tally.read != answered + failed:
        raise RowsLostError(
            f"{tally.read} rows read, but {answered} answered + {failed} in the dead letter = "
            f"{answered + failed}. The previous output was kept; the answers are in the journal."
        )


def check_ratio(tally: Tally, max_ratio: float, dead_letter_uri: str) -> None:
    """Checks that enough rows are answered to replace the previous output.

    Raises:
        NothingAnsweredError: No row is answered, independent of the ratio.
        TooManyFailedRowsError: Too many rows failed; the message has their number and reasons.
    """
    failed = tally.failed.total()
    if failed and not tally.answered.total():
        kind, message = next(iter(tally.messages.items()))
        raise NothingAnsweredError(
            f"None of {tally.read} rows was answered. {kind}: {message} Every row is in the dead letter, "
            f"{dead_letter_uri!r}; the previous output was kept."
        )
    if failed <= max_ratio * tally.read:
        return
    kinds = ", ".join(f"{count} × {kind} ({tally.messages[kind]})" for kind, count in tally.failed.most_common(3))
    raise TooManyFailedRowsError(
        f"{failed} of {tally.read} rows ended in the dead letter, {dead_letter_uri!r}: {kinds}. "
        f"`limits.max_dead_letter_ratio` is {max_ratio:g}, so the previous output was kept. The answers are in "
        "the journal: another run sends the failed rows only."
    )
