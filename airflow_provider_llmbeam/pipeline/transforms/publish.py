"""The last step: checks the sums, then publishes all files."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from functools import partial

import apache_beam as beam
from pydantic import ValidationError

from airflow_provider_llmbeam.engine.outcome import BEFORE_ANY_REQUEST, PERMANENT
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
from airflow_provider_llmbeam.pipeline.alerts.decide import RunFacts, alerts_of_end
from airflow_provider_llmbeam.pipeline.audit.load import load as load_audit
from airflow_provider_llmbeam.pipeline.batch_inference.manifest import BatchManifest
from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.conversation.store import publish_history
from airflow_provider_llmbeam.pipeline.lease import hold_sink
from airflow_provider_llmbeam.pipeline.media.uploads import delete_uploads
from airflow_provider_llmbeam.pipeline.prefix_cache import PrefixCache
from airflow_provider_llmbeam.pipeline.privacy.errors import errors_masked
from airflow_provider_llmbeam.pipeline.privacy.masker import masker_of, plain_rows
from airflow_provider_llmbeam.pipeline.prompt_of_row import selection
from airflow_provider_llmbeam.pipeline.reporting.comparison import compare
from airflow_provider_llmbeam.pipeline.reporting.history import (
    RunSummary,
    add_to_history,
    read_history,
    summary_of,
)
from airflow_provider_llmbeam.pipeline.reporting.page.render import page
from airflow_provider_llmbeam.pipeline.reporting.report import EstimateAccuracy, Report, RunUsage, build_report
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally, add_up
from airflow_provider_llmbeam.pipeline.secrets import load_environment
from airflow_provider_llmbeam.pipeline.sinks.files import move_in, write_file
from airflow_provider_llmbeam.pipeline.sinks.merge_files import merge_dead_letter, read_rows
from airflow_provider_llmbeam.pipeline.sinks.ownership import release
from airflow_provider_llmbeam.pipeline.sources import bigquery, queue
from airflow_provider_llmbeam.pipeline.transforms.check_rows import check_count, name_of
from airflow_provider_llmbeam.spec.fields.failure_kind import FAILURE_KINDS, FailureKind
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.job.output_rules import reads_own_dead_letter
from airflow_provider_llmbeam.spec.protocol.alert import Alert
from airflow_provider_llmbeam.spec.runner import DetachedRunner
from airflow_provider_llmbeam.spec.sink import FilesSink
from airflow_provider_llmbeam.spec.source import BigQuerySource

_log = logging.getLogger(__name__)


class Publish(beam.DoFn):
    """Checks the sums, then publishes: the dead letter, the answers, and the report last.

    A job that merges by key may have its own dead letter as its source, so it publishes that last: an attempt that
    repeats one that was killed reads the same rows.

    Raises:
        RowsLostError: Rows read are not answered + dead letter. Nothing was published.
        TooManyFailedRowsError: More rows failed than `limits.max_dead_letter_ratio` allows, or sending ended after
            the first ones. The dead letter was published, and the previous answers were kept.
        DriftError: The answers differ from those of earlier runs, and `alerts.on_drift` is 'fail'; as above.
        JobFailedError: Whether they differ cannot be read, and `alerts.on_drift` is 'fail'; as above.
        JobSpecError: No row became a request; as above.
        SourceEmptyError: The source has no rows, or too few. Nothing was published.
    """

    def __init__(
        self,
        spec: JobSpec,
        started_at: float,
        estimate_accuracy: Callable[[JobSpec, RunUsage], EstimateAccuracy | None] | None = None,
        cache: PrefixCache | None = None,
        batch: BatchManifest | None = None,
        deadline_at: float | None = None,
    ) -> None:
        self._spec = spec
        self._batch = batch
        self._deadline_at = deadline_at
        self._cache = cache
        self._started_at = started_at
        self._estimate_accuracy = estimate_accuracy
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
        with errors_masked(self._spec):
            yield self._published(tally, answer_files, failed_files, history_files)

    def _published(
        self,
        tally: Tally,
        answer_files: Iterable[tuple[int, str]],
        failed_files: Iterable[tuple[int, str]],
        history_files: Iterable[str],
    ) -> str:
        spec = self._spec
        if self._cache is not None:
            tally = add_up([tally, self._cache.tally(time.time())])
        load_audit(spec)
        check_sums(tally)
        queue.before_publication(spec)
        if not tally.read and (spec.source.on_empty != "write" or self._was_published):
            why = "has no rows of this run any more: they are published" if self._was_published else "has no rows"
            reason = f"{name_of(spec.source)} {why}, so the output was left as it is."
            report = self._report(tally, [], spec.paths.skipped_uri, None, skipped_because=reason)
            self._clean_up()
            release(spec)
            check_count(tally.read, spec.source)
            text = report.model_dump_json(indent=2)
            self._publish_text(text, spec.paths.skipped_uri)
            return text
        check_count(tally.read, spec.source)
        (failed,) = self._every_shard(failed_files, "dead_letter", 1, "jsonl").values()
        file_format, shards = sinks.staged_as(spec.sink)
        staged = self._every_shard(answer_files, "answers", shards, file_format)
        publish = partial(self._published_answers, staged, history_files)
        # Another job may merge into a files sink and its dead letter meanwhile, and would write what it has read
        # over the new files; with any other sink, the dead letter is of this job.
        with hold_sink(spec) if isinstance(spec.sink, FilesSink) else nullcontext():
            if spec.merges_by_key:
                text = self._publish_merged(tally, staged, failed, file_format, publish)
            else:
                move_in({failed: spec.paths.dead_letter_uri})
                self._check(tally)
                text = self._write_report(tally, publish())
        self._clean_up()
        return text

    def _check(self, tally: Tally) -> None:
        spec = self._spec
        try:
            check_ratio(
                tally, spec.limits.max_dead_letter_ratio, spec.paths.dead_letter_uri, spec.max_output_tokens
            )
            if spec.alerts.on_drift == "fail":
                report, _ = self._compared(self._report(tally, [], spec.paths.report_uri, None), is_needed=True)
                check_drift(report.alerts, spec.paths.journal_uri)
        except (JobSpecError, TooManyFailedRowsError, DriftError) as error:
            try:
                self._write_failed_report(tally, str(error))
            except Exception:  # noqa: BLE001 - the failed rows are the error of the job
                _log.exception("The report of the failed run could not be written to %r.", spec.paths.failed_uri)
            raise

    def _published_answers(self, staged: Mapping[int, str], history_files: Iterable[str]) -> list[str]:
        """Publishes the answers, then the turns of conversations; returns the addresses of the answers."""
        answers = self._published_before(staged) or sinks.publish(self._spec, staged)
        if (conversation := self._spec.conversation) is not None:
            publish_history(self._spec, conversation.ttl_days, history_files, time.time())
        return answers

    def _published_before(self, staged: Mapping[int, str]) -> list[str]:
        """Returns the addresses in the report of an earlier attempt, which has deleted the staged files."""
        uri = self._spec.paths.report_uri
        if not all(map(storage.exists, staged.values())) and storage.exists(uri):
            with suppress(ValidationError):  # for a report of an earlier release
                report = Report.model_validate_json(storage.read(uri))
                # The report is the last file to be published; an earlier run has another start.
                return report.answers_uris if report.started_at == self._started_at else []
        return []

    def _publish_merged(
        self,
        tally: Tally,
        staged: Mapping[int, str],
        failed: str,
        file_format: str,
        publish: Callable[[], list[str]],
    ) -> str:
        spec, columns = self._spec, OutputColumns.of(self._spec)
        if not storage.exists(failed):  # An earlier attempt has published and deleted it.
            return self._write_report(tally, publish())
        merge = partial(
            merge_dead_letter,
            spec.paths.dead_letter_uri,
            failed,
            spec.paths.staging_uri,
            columns,
            file_format=file_format,
            plain=plain_rows(spec),
            is_read=selection(spec.source, is_own_dead_letter=True) if reads_own_dead_letter(spec) else None,
        )
        try:
            self._check(tally)
        except (JobSpecError, TooManyFailedRowsError, DriftError):
            # Answers that are not published leave their rows in the dead letter.
            move_in({merge(done=()): spec.paths.dead_letter_uri})
            raise
        merged = merge(done=read_rows(staged, file_format))
        text = self._write_report(tally, publish())
        move_in({merged: spec.paths.dead_letter_uri})
        return text

    def _write_report(self, tally: Tally, answers_uris: list[str]) -> str:
        spec = self._spec
        report = self._report(tally, answers_uris, spec.paths.report_uri, spec.paths.report_html_uri)
        report, summary = self._compared(report)
        report = self._with_page(report, spec.paths.report_html_uri)
        text = report.model_dump_json(indent=2)
        self._publish_text(text, spec.paths.report_uri)  # the last file: whoever finds it finds all others
        add_to_history(spec, summary)
        return text

    def _write_failed_report(self, tally: Tally, reason: str) -> None:
        spec = self._spec
        report = self._report(tally, [], spec.paths.failed_uri, spec.paths.failed_html_uri, failed_because=reason)
        report, _ = self._compared(report)
        report = self._with_page(report, spec.paths.failed_html_uri)
        self._publish_text(report.model_dump_json(indent=2), spec.paths.failed_uri)

    def _report(
        self,
        tally: Tally,
        answers_uris: list[str],
        uri: str,
        html_uri: str | None,
        *,
        skipped_because: str | None = None,
        failed_because: str | None = None,
    ) -> Report:
        spec, batch = self._spec, self._batch
        budget = spec.limits.budget_usd
        return build_report(
            spec,
            tally=tally,
            answers_uris=answers_uris,
            dead_letter_uri=spec.paths.dead_letter_uri,
            report_uri=uri,
            report_html_uri=html_uri,
            started_at=self._started_at,
            finished_at=time.time(),
            estimate_accuracy=self._estimate_accuracy,
            skipped_because=skipped_because,
            failed_because=failed_because,
            # The spec has what batch inference has left of the budget.
            budget_usd=None if budget is None else budget + (batch.budgeted_usd if batch else 0.0),
            deadline_at=self._deadline_at,
            batch_began_at=batch.created_at if batch and batch.files else None,
            messages_left=queue.messages_left(spec),
            masker=masker_of(spec),
        )

    def _compared(self, report: Report, *, is_needed: bool = False) -> tuple[Report, RunSummary]:
        """Returns a report with the comparison with earlier runs, and the summary that later runs compare with."""
        summary = summary_of(self._spec, report)
        history = read_history(self._spec, is_needed=is_needed)
        comparison = compare(summary, history.without(summary.run))
        alerts = alerts_of_end(
            self._spec.alerts,
            RunFacts(job=report.name, budget_usd=report.budget_usd, deadline_at=report.deadline_at),
            rows=report.rows.read,
            failed=report.rows.dead_letter,
            cost_usd=report.cost_usd,
            comparison=comparison,
            now=report.finished_at,
        )
        changes = () if comparison is None else tuple(comparison.changes)
        compared = {"comparison": comparison, "changes": changes, "alerts": tuple(alerts)}
        return report.model_copy(update=compared), summary

    def _with_page(self, report: Report, uri: str) -> Report:
        try:
            self._publish_text(page(report), uri)
        except Exception:  # noqa: BLE001 - a defect of the page must not fail a job whose answers are published
            _log.exception("The report could not be rendered as a page; %r is complete.", report.report_uri)
            return report.model_copy(update={"report_html_uri": None})
        return report

    def _publish_text(self, text: str, uri: str) -> None:
        mime_type = "text/html; charset=utf-8" if uri.endswith(".html") else "application/json"
        staged = f"{self._spec.paths.staging_uri}{uri.rpartition('/')[2]}"
        with storage.create(staged, is_private=True, mime_type=mime_type) as file:
            file.write(text.encode())
        move_in({staged: uri})

    def _clean_up(self) -> None:
        queue.after_publication(self._spec)
        storage.delete(storage.match(f"{self._spec.paths.staging_uri}*"))
        if isinstance(self._spec.source, BigQuerySource):
            bigquery.discard(self._spec.paths.export_uri)
        if isinstance(self._spec.runner, DetachedRunner):
            delete_uploads(self._spec)

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
    answered, failed = tally.answered.total(), tally.failed.total()
    if tally.read != answered + failed:
        raise RowsLostError(
            f"{tally.read} rows read, but {answered} answered + {failed} in the dead letter = "
            f"{answered + failed}. The previous output was kept; the answers are in the journal."
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


def check_ratio(tally: Tally, max_ratio: float, dead_letter_uri: str, max_output_tokens: int) -> None:
    """Checks that enough rows are answered to replace the previous output.

    Args:
        tally: Sums over all rows.
        max_ratio: `limits.max_dead_letter_ratio`.
        dead_letter_uri: Address of the dead letter.
        max_output_tokens: `generation.max_output_tokens`; 0 if the answers are vectors.

    Raises:
        JobSpecError: No row became a request, independent of the ratio.
        PermanentFailureError: Sending ended as the first rows failed, or too many rows failed for reasons that
            another run repeats.
        NothingAnsweredError: No row is answered, independent of the ratio.
        TooManyFailedRowsError: Too many rows failed; the message has their number and reasons.
    """
    failed, answered = tally.failed.total(), tally.answered.total()
    kept = f"The rows are in {dead_letter_uri!r}; the old output stays."
    if not failed or (answered and failed <= max_ratio * tally.read):
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
            raise JobSpecError(f"{message} Nothing was sent or billed.")
        others = "" if rows == tally.read else f"None of {tally.read} rows was answered. "
        raise (PermanentFailureError if is_permanent else NothingAnsweredError)(f"{others}{message}")
    kinds = ", ".join(f"{count} × {kind} ({tally.messages[kind]})" for kind, count in tally.failed.most_common(3))
    again = "a changed spec" if is_permanent else "another run"
    raise (PermanentFailureError if is_permanent else TooManyFailedRowsError)(
        f"{failed} of {tally.read} rows ended in the dead letter, {dead_letter_uri!r}: {kinds}. "
        f"`limits.max_dead_letter_ratio` is {max_ratio:g}, so the previous output was kept. The answers are in "
        f"the journal: {again} sends the failed rows only."
    )


def _kind(name: str) -> FailureKind:
    return next(kind for kind in FAILURE_KINDS if kind == name)
