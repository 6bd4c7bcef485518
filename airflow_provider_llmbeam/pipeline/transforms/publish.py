"""The last step: checks the sums, then publishes all files."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import apache_beam as beam
from pydantic import ValidationError

from airflow_provider_llmbeam.engine.outcome import BEFORE_ANY_REQUEST, OF_EVERY_PROMPT, PERMANENT
from airflow_provider_llmbeam.engine.pacing.shared_failure import SharedFailure
from airflow_provider_llmbeam.exceptions import (
    DriftError,
    JobSpecError,
    NothingAnsweredError,
    PermanentFailureError,
    RowsLostError,
    TooManyFailedRowsError,
)
from airflow_provider_llmbeam.pipeline import sinks, storage
from airflow_provider_llmbeam.pipeline.cascade.report import audit_of, drifted_stages
from airflow_provider_llmbeam.pipeline.cascade.state import end_cascade
from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.conversation.store import publish_history
from airflow_provider_llmbeam.pipeline.feature import Feature
from airflow_provider_llmbeam.pipeline.lease import hold_sink
from airflow_provider_llmbeam.pipeline.prefix_cache import PrefixCache
from airflow_provider_llmbeam.pipeline.privacy.masker import mask_errors, plain_rows
from airflow_provider_llmbeam.pipeline.prompt_of_row import selection
from airflow_provider_llmbeam.pipeline.reporting.report import Report
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally, add_up
from airflow_provider_llmbeam.pipeline.secrets import load_environment
from airflow_provider_llmbeam.pipeline.sinks.files import move_in, write_file
from airflow_provider_llmbeam.pipeline.sinks.merge_files import merge_dead_letter, read_rows
from airflow_provider_llmbeam.pipeline.sinks.ownership import release
from airflow_provider_llmbeam.pipeline.sources import bigquery, queue, sql
from airflow_provider_llmbeam.pipeline.transforms.check_rows import check_count, name_of
from airflow_provider_llmbeam.pipeline.transforms.refusals import Refusals, TooManyRefusalsError
from airflow_provider_llmbeam.pipeline.transforms.write_report import ReportWriter
from airflow_provider_llmbeam.spec.fields.failure_kind import FAILURE_KINDS, FailureKind
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.job.output_rules import matches, reads_own_dead_letter
from airflow_provider_llmbeam.spec.protocol.alert import Alert
from airflow_provider_llmbeam.spec.sink import FilesSink
from airflow_provider_llmbeam.spec.source import BigQuerySource, FilesSource, SqlSource, sends_failed_rows

_log = logging.getLogger(__name__)


class Publish(beam.DoFn):
    """Checks the sums, then publishes: the answers, the dead letter, and the report last.

    A job that merges by key may have its own dead letter as its source, so it publishes that last: an attempt that
    repeats one that was killed reads the same rows. A job that fails publishes neither: its failed rows lie with
    its own files, see `JobPaths.failed_rows_uri`.

    Args:
        spec: The job.
        report: Writes the report.
        features: The features of the job.
        cache: What the provider has stored of the prompts; `None` for nothing.

    Raises:
        RowsLostError: Rows read are not answered + dead letter. Nothing was published.
        TooManyFailedRowsError: More rows failed than `limits.max_dead_letter_ratio` allows, or sending ended after
            the first ones, or the sink has refused too many answers. The previous output was kept.
        DriftError: The answers differ from those of earlier runs, and `alerts.on_drift` is 'fail'; as above.
        JobFailedError: Whether they differ cannot be read, and `alerts.on_drift` is 'fail'; as above.
        JobSpecError: No row became a request; as above.
        SourceEmptyError: The source has no rows, or too few. Nothing was published.
    """

    def __init__(
        self,
        spec: JobSpec,
        report: ReportWriter,
        features: Sequence[Feature[Any]] = (),
        cache: PrefixCache | None = None,
    ) -> None:
        self._spec = spec
        self._report = report
        self._features = features
        self._cache = cache
        self._was_published = queue.was_published(spec)  # before this attempt, also for a step that is repeated

    def setup(self) -> None:
        """Sets the keys of the sink, if no other step on this worker has set them."""
        load_environment(self._spec.environment_secrets)

    def process(
        self,
        _: bytes,
        tally: Tally,
        answer_files: Iterable[tuple[int, str]],
        failed_files: Iterable[tuple[int, str]],
        history_files: Iterable[str] = (),
    ) -> Iterator[str]:
        """Publishes the result of the job."""
        with mask_errors(self._spec):
            yield self._publish(tally, answer_files, failed_files, history_files)

    def _publish(
        self,
        tally: Tally,
        answer_files: Iterable[tuple[int, str]],
        failed_files: Iterable[tuple[int, str]],
        history_files: Iterable[str],
    ) -> str:
        spec = self._spec
        if self._cache is not None:
            tally = add_up([tally, self._cache.tally(time.time())])
        for feature in self._features:
            feature.before_publication()
        check_sums(tally)
        queue.before_publication(spec)
        skipped = tally.skipped.total()
        asked = tally.read - skipped
        if not asked and (spec.source.on_empty != "write" or self._was_published):
            why = "has no rows of this run any more: they are published" if self._was_published else "has no rows"
            if skipped:
                why = f"has {skipped:,} rows, which `source.skip_empty` all skips"
            reason = f"{name_of(spec.source)} {why}, so the output was left as it is."
            text = self._report.build_skipped(tally, reason)
            self._clean_up()
            release(spec)
            check_count(asked, spec.source, skipped)
            self._report.write_text(text, spec.paths.skipped_uri)
            return text
        check_count(asked, spec.source)
        file_format, shards = sinks.staged_as(spec.sink)
        staged = self._every_shard(answer_files, "answers", shards, file_format)
        published = self._report_of_earlier_attempt(staged)
        if published is None:
            (failed,) = self._every_shard(failed_files, "dead_letter", 1, "jsonl").values()
            # Another job may merge into a files sink and its dead letter meanwhile, and would write what it has
            # read over the new files; with any other sink, the dead letter is of this job.
            with hold_sink(spec) if isinstance(spec.sink, FilesSink) else nullcontext():
                published = self._publish_pair(tally, staged, failed, history_files)
            # Those of an earlier run, which this one has repeated.
            uri = spec.paths.failed_rows_uri
            if storage.exists(uri) and not (
                isinstance(spec.source, FilesSource) and matches(spec.source.uri, uri)
            ):
                storage.delete([uri])
        if spec.cascade is not None:
            report = Report.model_validate_json(published)
            end_cascade(spec, audit_of(report), drifted_stages(report))
        self._clean_up()
        return published

    def _publish_pair(
        self, tally: Tally, staged: dict[int, str], failed: str, history_files: Iterable[str]
    ) -> str:
        """Publishes the answers and the dead letter that belongs to them; returns the report."""
        spec = self._spec
        self._check(tally, failed)
        dead_letter = self._dead_letter(staged, failed)
        refusals = Refusals(spec, tally, staged)
        try:
            answers = sinks.publish(spec, staged, refusals.add)
        except TooManyRefusalsError:
            answers = []
        if refusals:
            tally, failed = refusals.move(failed)
            self._check(tally, failed)
            dead_letter = self._dead_letter(staged, failed)
        if (conversation := spec.conversation) is not None:
            publish_history(spec, conversation.ttl_days, history_files, time.time())
        if not spec.merges_by_key:
            move_in({dead_letter: spec.paths.dead_letter_uri})
            return self._report.write(tally, answers)
        text = self._report.write(tally, answers, dead_letter)
        move_in({dead_letter: spec.paths.dead_letter_uri})
        return text

    def _check(self, tally: Tally, failed: str) -> None:
        """Checks that the answers may be published; if not, keeps failed rows and their report with the job."""
        spec = self._spec
        try:
            check_ratio(
                tally,
                spec.limits.max_dead_letter_ratio,
                spec.paths.failed_rows_uri,
                spec.max_output_tokens,
                may_all_fail=sends_failed_rows(spec.source),
            )
            if spec.alerts.on_drift == "fail":
                check_drift(self._report.find_alerts(tally), spec.paths.journal_uri)
        except (JobSpecError, TooManyFailedRowsError, DriftError) as error:
            move_in({failed: spec.paths.failed_rows_uri})
            try:
                self._report.write_failed(tally, str(error))
            except Exception:  # noqa: BLE001 - the failed rows are the error of the job
                _log.exception("The report of the failed run could not be written to %r.", spec.paths.failed_uri)
            raise

    def _report_of_earlier_attempt(self, staged: Mapping[int, str]) -> str | None:
        """Returns the report of an earlier attempt, which has published all files and deleted the staged ones."""
        uri = self._spec.paths.report_uri
        if not all(map(storage.exists, staged.values())) and storage.exists(uri):
            with suppress(ValidationError):  # for a report of an earlier release
                text = storage.read(uri).decode()
                # The report follows the answers; an earlier run has another start.
                if Report.model_validate_json(text).started_at == self._report.started_at:
                    return text
        return None

    def _dead_letter(self, staged: Mapping[int, str], failed: str) -> str:
        """Returns the address of the dead letter of this run: merged, it has the earlier rows of other keys."""
        spec = self._spec
        if not spec.merges_by_key:
            return failed
        file_format, _ = sinks.staged_as(spec.sink)
        return merge_dead_letter(
            spec.paths.dead_letter_uri,
            failed,
            spec.paths.staging_uri,
            OutputColumns.of(spec),
            done=read_rows(staged, file_format),
            file_format=file_format,
            plain=plain_rows(spec),
            is_read=selection(spec.source, is_own_dead_letter=True) if reads_own_dead_letter(spec) else None,
        )

    def _clean_up(self) -> None:
        queue.after_publication(self._spec)
        storage.delete(storage.match(f"{self._spec.paths.staging_uri}*"))
        match self._spec.source:
            case BigQuerySource():
                bigquery.discard(self._spec.paths.export_uri)
            case SqlSource():
                sql.discard(self._spec)

    def _every_shard(
        self, written: Iterable[tuple[int, str]], prefix: str, shards: int, file_format: str
    ) -> dict[int, str]:
        """Adds an empty file per missing shard, so that a run without rows has an answer file."""
        files = dict(written)
        for shard in set(range(shards)) - files.keys():
            files[shard] = f"{self._spec.paths.staging_uri}{prefix}-{shard}-empty.{file_format}"
            write_file(
                files[shard],
                (),
                file_format,
                OutputColumns.of(self._spec),
                is_private=prefix == "dead_letter",
            )
        return files


def check_sums(tally: Tally) -> None:
    """Checks that no row is lost.

    Raises:
        RowsLostError: The sums differ; the message has the numbers.
    """
    answered, failed, skipped = tally.answered.total(), tally.failed.total(), tally.skipped.total()
    if tally.read != (found := answered + failed + skipped):
        raise RowsLostError(
            f"{tally.read} rows read, but {answered} answered + {failed} in the dead letter + {skipped} "
            f"skipped = {found}. The previous output was kept; the answers are in the journal."
        )


def check_drift(alerts: Iterable[Alert], journal_uri: str) -> None:
    """Checks that the answers have not drifted.

    Raises:
        DriftError: They have, and `alerts.on_drift` is 'fail'.
    """
    for alert in alerts:
        if alert.kind == "drift":
            raise DriftError(
                f"{alert.message} `alerts.on_drift` is 'fail', so no answer was published, and the previous "
                f"output was kept. The answers are in {journal_uri!r}: with 'warn' the next run publishes them, "
                "and sends nothing."
            )


def check_ratio(
    tally: Tally,
    max_ratio: float,
    dead_letter_uri: str,
    max_output_tokens: int,
    *,
    may_all_fail: bool = False,
) -> None:
    """Checks that enough rows are answered to replace the previous output.

    Args:
        tally: Sums over all rows.
        max_ratio: `limits.max_dead_letter_ratio`.
        dead_letter_uri: Address of the dead letter.
        max_output_tokens: `generation.max_output_tokens`; 0 if the answers are vectors.
        may_all_fail: Whether the ratio may be that of all rows: rows that failed before may fail again, unless
            each request is refused alike.

    Raises:
        JobSpecError: No row became a request, independent of the ratio.
        PermanentFailureError: Sending ended as the first rows failed, or too many rows failed for reasons that
            another run repeats.
        NothingAnsweredError: No row is answered, independent of the ratio.
        TooManyFailedRowsError: Too many rows failed; the message has their number and reasons.
    """
    failed, answered = tally.failed.total(), tally.answered.total()
    kept = f"The rows are in {dead_letter_uri!r}; the old output stays."
    may_all_fail = may_all_fail and not tally.failed.keys() & {"not_sent", *OF_EVERY_PROMPT}
    if not failed or ((answered or may_all_fail) and failed <= max_ratio * tally.read):
        return
    if "not_sent" in tally.failed:
        raise PermanentFailureError(f"{tally.messages['not_sent']} {kept}")
    permanent = sum(rows for kind, rows in tally.failed.items() if kind in PERMANENT)
    is_permanent = permanent == failed if not answered else permanent > max_ratio * tally.read
    if not answered:
        ((kind, rows),) = tally.failed.most_common(1)
        failure = SharedFailure(_kind(kind), rows, tally.read, tally.messages[kind])
        message = f"{failure.sentence(max_output_tokens)} {kept}"
        if tally.failed.keys() <= BEFORE_ANY_REQUEST:
            raise JobSpecError(str(message))
        others = "" if rows == tally.read else f"None of {tally.read} rows was answered. "
        raise (PermanentFailureError if is_permanent else NothingAnsweredError)(f"{others}{message}")
    asked = failed - tally.failed["not_stored"]
    commonest = tally.failed.most_common(3)
    shared = [SharedFailure(_kind(kind), count, tally.read, tally.messages[kind]) for kind, count in commonest]
    causes = " ".join(each.cause(max_output_tokens, f"{each.failed:,}") for each in shared)
    examples = ", ".join(f"{each.kind} ({each.message})" for each in shared)
    again = "once that is corrected, another run" if is_permanent and asked else "another run"
    sent = "the failed rows only" if asked else "nothing, and publishes them once the sink takes them"
    raise (PermanentFailureError if is_permanent else TooManyFailedRowsError)(
        f"{failed:,} of {tally.read:,} rows failed, and `limits.max_dead_letter_ratio` is {max_ratio:g}, so the "
        f"previous output was kept. {causes} The answers are in the journal: {again} sends {sent}. The failed "
        f"rows are in {dead_letter_uri!r}, e.g. {examples}."
    )


def _kind(name: str) -> FailureKind:
    return next(kind for kind in FAILURE_KINDS if kind == name)
