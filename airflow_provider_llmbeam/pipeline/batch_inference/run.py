"""Answers the prompts of a job by batch inference, before it runs; continues what an earlier try began."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import apache_beam as beam
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from airflow_provider_llmbeam.exceptions import (
    BudgetExceededError,
    JobRefusedError,
    JobSpecError,
    LLMBeamError,
    SourceEmptyError,
)
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.batch_inference.decide import MonitorHistory
from airflow_provider_llmbeam.pipeline.batch_inference.harvest import harvest, result_files
from airflow_provider_llmbeam.pipeline.batch_inference.manifest import (
    ERROR_CHARACTERS,
    BatchManifest,
    RequestFile,
    Sums,
    digest_of,
    files_by_name,
    read_manifest,
    write_manifest,
)
from airflow_provider_llmbeam.pipeline.batch_inference.monitor import Monitor
from airflow_provider_llmbeam.pipeline.batch_inference.prepare import (
    FileLimits,
    prepare,
    read_guard_usage,
    read_prepared,
    read_stage_usage,
)
from airflow_provider_llmbeam.pipeline.batch_inference.ways import Way, Work, moment
from airflow_provider_llmbeam.pipeline.cascade.report import paid_by_name
from airflow_provider_llmbeam.pipeline.cascade.run import BegunCascade
from airflow_provider_llmbeam.pipeline.cascade.state import read_calibration
from airflow_provider_llmbeam.pipeline.measure.estimate.estimate import Estimate, SampleUsage
from airflow_provider_llmbeam.pipeline.measure.estimate.run import make_estimate
from airflow_provider_llmbeam.pipeline.measure.estimate.stages import seconds_of
from airflow_provider_llmbeam.pipeline.measure.estimate.ways import auto_way, deadline_at, plan_of, ways_of_job
from airflow_provider_llmbeam.pipeline.secrets import known_secrets
from airflow_provider_llmbeam.pipeline.shared_budget import reserve_batch, settle_batch
from airflow_provider_llmbeam.providers.batch import BatchJob, BatchProvider, delete_uploads, open_provider
from airflow_provider_llmbeam.providers.errors import ApiError
from airflow_provider_llmbeam.redaction import redact
from airflow_provider_llmbeam.spec.facts import TIER_RATIOS
from airflow_provider_llmbeam.spec.identity import display_name_prefix
from airflow_provider_llmbeam.spec.inference import PILOT_ROWS
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.job.inference_rules import check_batch_model
from airflow_provider_llmbeam.spec.model import Model, parse_model
from airflow_provider_llmbeam.spec.model.price import price_of
from airflow_provider_llmbeam.spec.model.server import is_below
from airflow_provider_llmbeam.spec.protocol.counts import NANO, usd

_log = logging.getLogger("llmbeam")

#: Largest request file, in bytes. Files are answered side by side, and one that fails takes only its rows with it.
MAX_FILE_BYTES = 200 * 2**20

NewPipeline = Callable[[], beam.Pipeline]


class BatchInference:
    """The batch inference of one job.

    Args:
        spec: The job.
        new_pipeline: Makes a pipeline of the job's runner.
        waits: Whether `fill_journal` waits for the jobs.
        provider: The provider; by default that of the model.
        clock: Unix time, in seconds.
        sleep: Waits, in seconds.
        cascade: The calibrated cascade, whose stages are asked before the request files are written.
    """

    def __init__(
        self,
        spec: JobSpec,
        new_pipeline: NewPipeline,
        *,
        waits: bool = True,
        provider: BatchProvider | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        cascade: BegunCascade | None = None,
    ) -> None:
        self._cascade = cascade if cascade is not None and cascade.run.asked else None
        self._spec = spec
        self._new_pipeline = new_pipeline
        self._provider = provider or open_provider(
            spec.model,
            output_uri=f"{spec.paths.batch_uri}results/",
            embeds=spec.embedding is not None,
            kms_key_name=spec.kms_key_name,
        )
        self._prefix = display_name_prefix(spec)
        self._monitor = Monitor(spec, self._provider, waits=waits, clock=clock, sleep=sleep)
        self._clock = clock
        #: What was done; `None` for a source without rows. It has no files if the prompts are sent online.
        self.manifest: BatchManifest | None = None

    def fill_journal(self) -> None:
        """Brings the answers of batch inference into the journal; the job sends the rest online.

        With `inference.mode` 'online' it ends the batch inference of an earlier try, and begins none.

        Raises:
            LLMBeamError: The job cannot start, or its jobs at the provider cannot be polled.
            BatchPendingError: The jobs have not ended, and this process does not wait for them.
        """
        is_online = self._spec.inference.mode == "online"
        self.manifest = self._read_earlier()
        if not is_online:
            self.manifest = self._update_deadline(self.manifest) or self._prepare_files()
        if self.manifest is None or not self.manifest.files:
            return
        manifest = self.manifest
        plan = plan_of(self._spec, manifest.created_at, manifest.deadline_at, manifest.online_seconds)
        if is_online:
            plan = replace(plan, ends_because="`inference.mode` is 'online' now")
        try:
            self._monitor.attach(self.manifest, plan)
            if is_online:
                self._log_what_ends()
            if not self.manifest.is_over:
                self.manifest = self._monitor.run(self.manifest, plan)
            self._harvest(self.manifest)
        except JobRefusedError as error:
            if not manifest.jobs and not self._monitor.jobs:
                raise
            names = ", ".join(self._running(manifest)) or "none"
            instead = (
                f" To send every row online instead, delete {self._spec.paths.batch_uri!r}." if is_online else ""
            )
            raise JobRefusedError(
                f"{error} Batch-inference jobs that were submitted, and may run and bill: {names}. Clear the task "
                f"when the access is restored: it takes their answers, and submits nothing again.{instead}"
            ) from error
        except ApiError as error:
            if not (running := self._running(manifest)):
                raise
            raise ApiError(
                f"{error} Batch-inference jobs that were submitted, and may run and bill: {', '.join(running)}. A "
                "retry, or a clear of the task, takes their answers."
            ) from error

    def _running(self, manifest: BatchManifest) -> list[str]:
        """Returns the names of the jobs that have not ended, as far as it is known."""
        jobs = manifest.jobs | self._monitor.jobs
        return [job.name for name, job in jobs.items() if not job.has_ended and name not in manifest.harvested]

    def _log_what_ends(self) -> None:
        """Names the jobs that an earlier try in another mode has left."""
        jobs = self._monitor.jobs.values()
        ended = ", ".join(job.name for job in jobs if job.has_ended) or "none"
        running = ", ".join(job.name for job in jobs if not job.has_ended) or "none"
        _log.info(
            "An earlier try began batch inference, and `inference.mode` is 'online' now. Jobs that have ended, "
            "whose answers are used: %s. Jobs that run, and are to be cancelled: %s.",
            ended,
            running,
        )

    @contextmanager
    def count_in_budget(self) -> Iterator[None]:
        """Adds what this try has spent before to the error of a spent budget; a later try has a new one.

        Raises:
            BudgetExceededError: The body has raised it.
        """
        try:
            yield
        except BudgetExceededError as error:
            manifest, budget = self.manifest, self._spec.limits.budget_usd
            if manifest is None or not manifest.files or manifest.is_budget_spent:
                raise
            with _log_failure("The spent budget could not be noted, and is that of the next try, too"):
                self._save(is_budget_spent=True)
            if budget is None:  # that of the guard
                raise
            raise BudgetExceededError(
                f"{error} Before that, the first prompts and batch inference had cost {usd(manifest.cost_usd)} of "
                f"the {usd(budget)} that the job allows."
            ) from error

    def clean_up(self) -> None:
        """Deletes jobs and files, once the job has published; a failure is only logged."""
        if self.manifest is None or not self.manifest.files:
            return
        with _log_failure():
            self._save(is_published=True)  # a later run does not count these answers again
            self._delete(self.manifest, self._monitor.jobs)

    def _delete(self, manifest: BatchManifest, jobs: Mapping[str, BatchJob]) -> None:
        """Deletes jobs that have ended, and all files; the manifest last, if nothing is left at the provider."""
        faults = []
        for job in jobs.values():
            if job.has_ended:
                try:
                    self._provider.delete(job)
                except ApiError as error:
                    faults.append(f"{job.name}: {error}")
        running = {name for name, job in jobs.items() if not job.has_ended}
        try:
            delete_uploads(self._provider, self._prefix, manifest.files.keys() - running)
        except ApiError as error:
            faults.append(str(error))
        kept = self._spec.paths.manifest_uri
        storage.delete([uri for uri in storage.match(f"{self._spec.paths.batch_uri}**") if uri != kept])
        if faults:
            raise ApiError(" ".join(faults))
        storage.delete([kept])

    def _save(self, **changes: object) -> None:
        assert self.manifest is not None
        self.manifest = self.manifest.changed(**changes)
        write_manifest(self._spec, self.manifest)

    def _read_earlier(self) -> BatchManifest | None:
        manifest = read_manifest(self._spec)
        if manifest is None:
            return None
        if manifest.is_published:
            _log.info("An earlier try has published; jobs and files of its batch inference are deleted.")
            with _log_failure():
                self._delete(manifest, self._monitor.find(manifest))
            return None
        if manifest.prompts == digest_of(self._spec):
            return manifest
        _discard(self._spec, manifest)
        return None

    def _update_deadline(self, manifest: BatchManifest | None) -> BatchManifest | None:
        """Returns the manifest of an earlier try with the deadline that the spec has now.

        `None` if that try has submitted nothing, as there was no time for it: the prompts that are still without
        an answer may go to batch inference now.
        """
        if manifest is None:
            return None
        before, deadline = manifest.deadline_at, deadline_at(self._spec, manifest.created_at)
        if deadline == before:
            return manifest
        before_text, deadline_text = ("no time" if at is None else moment(at) for at in (before, deadline))
        _log.info(
            "`inference.finish_by` has changed since batch inference began: from %s to %s.",
            before_text,
            deadline_text,
        )
        if manifest.is_over and not any(manifest.submits.values()) and not manifest.intents:
            storage.delete(storage.match(f"{self._spec.paths.batch_uri}**"))
            return None
        is_later = (math.inf if deadline is None else deadline) > (math.inf if before is None else before)
        # With more time, the decision to cancel is taken anew; what has ended has ended.
        manifest = manifest.changed(
            deadline_at=deadline, history=MonitorHistory() if is_later else manifest.history
        )
        write_manifest(self._spec, manifest)
        return manifest

    def _prepare_files(self) -> BatchManifest | None:
        """Sends the pilot online, and writes the request files if the rest goes to batch inference."""
        spec, now = self._spec, self._clock()
        for lack in self._provider.probe():
            _log.warning("Batch inference of the server: %s", lack)
        if self._cascade is not None:  # its sample was the pilot
            manifest = _new_manifest(spec, now).changed(cascade=paid_by_name(self._cascade.tally))
        else:
            pilot = _send_pilot(spec, now)
            if pilot is None:
                return None
            estimate, manifest = pilot
            if not estimate.requests or not self._takes_batch(estimate):
                return manifest
        limits = self._provider.limits
        pipeline = self._new_pipeline()
        prepare(
            pipeline,
            manifest.with_remaining_budget(spec),
            FileLimits(max_rows=limits.max_rows, max_bytes=min(limits.max_bytes, MAX_FILE_BYTES)),
            since=manifest.created_at,
            cascade=None if self._cascade is None else self._cascade.run,
        )
        pipeline.run().wait_until_finish()
        files = files_by_name(spec, read_prepared(spec))
        if self._cascade is not None:
            manifest = manifest.changed(cascade=dict(Counter(manifest.cascade) + read_stage_usage(spec)))
            ways, online_seconds = ways_after_stages(spec, files.values(), now)
            manifest = manifest.changed(online_seconds=online_seconds)
            if ways and spec.inference.mode == "auto" and self._auto(ways).tier != "batch":
                files = {}
            else:
                self._reserve(self._cascade, sum(file.rows for file in files.values()))
        manifest = manifest.changed(files=files, guard=dict(read_guard_usage(spec) + Counter(manifest.guard)))
        if not files:  # the guard has blocked the rest, or it is sent online
            settle_batch(spec, 0.0)
            storage.delete(storage.match(f"{spec.paths.batch_uri}**"))
            return manifest
        # The intent, before the first job is submitted.
        write_manifest(spec, manifest)
        _log.info(
            "Batch inference: %s rows, %.1f MiB, request files: %d.",
            f"{sum(file.rows for file in files.values()):,}",
            sum(file.size for file in files.values()) / 2**20,
            len(files),
        )
        return manifest

    def _takes_batch(self, estimate: Estimate) -> bool:
        """Whether the prompts go to batch inference."""
        chosen = None if self._spec.inference.mode == "batch" else self._auto(estimate.ways)
        budget, spent = self._spec.limits.budget_usd, estimate.sample_usage.cost_usd or 0.0
        # What is sent online instead is checked by the job itself. It may cost less, with a prefix cache.
        costs = (estimate.batch_cost_usd, None if chosen is None else chosen.cost_usd)
        cost = min((each for each in costs if each is not None), default=None)
        if cost is not None and budget is not None and spent + cost > budget:
            raise BudgetExceededError(
                f"Batch inference of {estimate.requests:,} prompts costs about "
                f"{usd(estimate.batch_cost_usd or 0.0)}, the first prompts cost {usd(spent)}, and "
                f"`limits.budget_usd` allows {usd(budget)}. No job was submitted. Raise the budget, or leave rows "
                "out."
            )
        if (guard := estimate.guard) is not None and guard.exceeds_budget:
            raise BudgetExceededError(
                f"The guard model costs about {usd(guard.cost_usd or 0)} for the rest of the prompts and answers, "
                "and `safety.moderation.limits.budget_usd` allows less. No job was submitted. Raise the budget, "
                "or leave rows out."
            )
        takes_batch = chosen is None or chosen.tier == "batch"
        if takes_batch:
            reserve_batch(self._spec, estimate.batch_cost_usd or 0.0)
        return takes_batch

    def _reserve(self, cascade: BegunCascade, rows: int) -> None:
        """Reserves what `model` may cost for what the stages have left, by the cost of the sample."""
        if (calibration := cascade.run.calibration) is not None:
            reserve_batch(self._spec, rows * calibration.cost_per_row_by_model * TIER_RATIOS["batch"])

    def _auto(self, ways: Sequence[Way]) -> Way:
        """Returns the way that `inference.mode` 'auto' takes."""
        chosen, reason = auto_way(self._spec, ways)
        _log.info("`inference.mode` 'auto': %s.", reason)
        return chosen

    def _harvest(self, manifest: BatchManifest) -> None:
        """Reads the results of each job that has any; what was read by an earlier try is not read again."""
        spec, harvested = self._spec, dict(manifest.harvested)
        fresh: list[Sums] = []
        for display_name, job in self._monitor.jobs.items():
            if display_name in harvested:
                continue
            file = manifest.files[display_name]
            prefix = f"{spec.paths.batch_uri}results-{display_name}"
            if results := result_files(self._provider, job, file, prefix):
                uri = f"{spec.paths.batch_uri}sums-{file.digest}.json"
                pipeline = self._new_pipeline()
                harvest(pipeline, spec, file, results, uri, job.name, manifest.created_at)
                pipeline.run().wait_until_finish()
                harvested[display_name] = Sums.model_validate_json(storage.read(uri))
                fresh.append(harvested[display_name])
            elif not job.has_ended:
                continue
            else:
                error = redact(job.error or "the job has no results", known_secrets(spec.secret_variables))
                harvested[display_name] = Sums(errors={f"{job.phase}: {error[:ERROR_CHARACTERS]}": file.rows})
            self._save(harvested=harvested)
        settle_batch(spec, Sums.total(harvested.values()).cost_nano_usd / NANO)
        self._count_unreturned(harvested)
        manifest = self.manifest or manifest
        sums = Sums.total(harvested.values())
        rows = sum(file.rows for file in manifest.files.values())
        costs = self._refuse_costly_rest(manifest, rows - sums.answered, sums.commonest_errors, Sums.total(fresh))
        _log.info(
            "Batch inference has answered %s of %s rows; %s failed there, %s lines are no results.%s%s",
            *(f"{number:,}" for number in (sums.answered, rows, sums.failed, sums.malformed)),
            f" Errors there: {errors}." if (errors := sums.commonest_errors) else "",
            f" The rest is sent online{costs}." if rows > sums.answered else "",
        )

    def _refuse_costly_rest(self, manifest: BatchManifest, rest: int, errors: str, fresh: Sums) -> str:
        """Returns what the rest costs online, by the price of a prompt of the pilot.

        `fresh` has what this try has read: a later one finds the access restored.

        Raises:
            JobRefusedError: The account may not pay for it.
            BudgetExceededError: Without a budget of the job, it would cost more than twice what was planned.
        """
        if any(error.startswith("quota_exhausted") for error in fresh.errors):
            raise JobRefusedError(f"Rows of batch inference failed as the account may not pay: {errors}.")
        pilot = manifest.pilot
        each = pilot.cost_nano_usd / NANO / (pilot.answered + pilot.failed or 1)
        if not rest or not each:
            return ""
        rows = sum(file.rows for file in manifest.files.values())
        planned = pilot.cost_nano_usd / NANO + rows * each * TIER_RATIOS["batch"]
        if self._spec.limits.budget_usd is None and manifest.cost_usd + rest * each > 2 * planned:
            raise BudgetExceededError(
                f"Batch inference has cost {usd(manifest.cost_usd)}, and its {rest:,} unanswered rows would cost "
                f"about {usd(rest * each)} more online: together more than twice the {usd(planned)} that were "
                f"planned. Errors there: {errors or 'none'}. Nothing more is sent. To send them online, set "
                "`limits.budget_usd`."
            )
        return f" at full price, for about {usd(rest * each)}"

    def _count_unreturned(self, harvested: Mapping[str, Sums]) -> None:
        """Records the answers that jobs have counted, and neither returned nor may return in time.

        Answers that are of no use were returned: the bill has them, and the errors say what they are.
        """
        assert self.manifest is not None
        files, unreturned = self.manifest.files, {}
        for name, job in self._monitor.jobs.items():
            found = harvested.get(name, Sums())
            # A server may count more than it was sent.
            if (number := min(job.answered or 0, files[name].rows) - found.answered - found.unusable) > 0:
                unreturned[name] = number
        if unreturned:
            self._save(unreturned=unreturned)
            _log.warning(
                "Answers that batch-inference jobs have counted and not returned: %s. The provider bills them, "
                "and their rows are sent online.",
                ", ".join(f"{number:,} of {name}" for name, number in unreturned.items()),
            )


@contextmanager
def _log_failure(what: str = "Jobs or files of the batch inference could not be deleted") -> Iterator[None]:
    """Logs a failure of something after which the job ends as it would without it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - see above
        _log.warning("%s: %s", what, error)


def begin(
    spec: JobSpec, new_pipeline: NewPipeline, *, waits: bool, cascade: BegunCascade | None = None
) -> tuple[BatchInference | None, BatchManifest | None]:
    """Does what comes before the requests that are sent online: the pilot, and batch inference if the spec has it.

    Args:
        spec: The job.
        new_pipeline: See `BatchInference`.
        waits: See `BatchInference`.
        cascade: See `BatchInference`.

    Returns:
        The batch inference, if there is any, and what was done; `None` for a source without rows, and if nothing
        had to be done.
    """
    if spec.inference.mode != "online":
        batch = BatchInference(spec, new_pipeline, waits=waits, cascade=cascade)
        batch.fill_journal()
        return batch, batch.manifest
    earlier = read_manifest(spec)
    if earlier is not None and earlier.prompts != digest_of(spec):  # the model may have no batch inference now
        _discard(spec, earlier)
    elif earlier is not None and (batch := _end_earlier(spec)).manifest is not None:
        return batch, batch.manifest
    if not spec.inference.needs_pilot:
        return None, None
    now = time.time()
    if cascade is not None and cascade.run.asked:  # its sample was the pilot
        seconds = make_estimate(spec, 0).cascade_seconds
        return None, _new_manifest(spec, now).changed(online_seconds=seconds)
    pilot = _send_pilot(spec, now)
    return None, pilot and pilot[1]


def ways_after_stages(
    spec: JobSpec, files: Iterable[RequestFile], now: float
) -> tuple[tuple[Way, ...], float | None]:
    """Returns the ways of what the stages of a cascade have left for `model`, and its time online, in seconds.

    Args:
        spec: The job, which is calibrated.
        files: The request files.
        now: Unix time.
    """
    stored = read_calibration(spec)
    if stored is None:
        return (), None
    found = [*files]
    rows = sum(file.rows for file in found)
    output_tokens = round(rows * stored.output_tokens)
    work = Work(rows=rows, input_tokens=sum(file.input_tokens for file in found), output_tokens=output_tokens)
    seconds = seconds_of(spec, stored, -1, work)
    return ways_of_job(spec, work, price_of(spec.model, spec.limits.price), seconds, now), seconds


def _end_earlier(spec: JobSpec) -> BatchInference:
    """Ends the batch inference that an earlier try of a job began, whose mode is 'online' now."""
    # In this process, as its files may be on this machine, and the job may have workers elsewhere.
    batch = BatchInference(spec, lambda: beam.Pipeline(runner=FnApiRunner()), waits=True)
    batch.fill_journal()
    if (manifest := batch.manifest) is not None:
        batch.manifest = manifest.changed(deadline_at=deadline_at(spec, manifest.created_at))
    return batch


def _send_pilot(spec: JobSpec, now: float) -> tuple[Estimate, BatchManifest] | None:
    """Sends the pilot, as ordinary requests: none at the flex tier.

    Args:
        spec: The job.
        now: Unix time.

    Returns:
        What the rest costs and takes online, and a manifest without files; `None` for a source without rows.
    """
    try:
        estimate = make_estimate(spec, PILOT_ROWS)
    except SourceEmptyError:
        return None  # the job decides by `source.on_empty`
    for line in estimate.lines():
        _log.info("%s", line)
    manifest = _new_manifest(spec, now).changed(
        online_seconds=estimate.duration_seconds,
        pilot=_sums_of(estimate.sample_usage),
        pilot_tiers=estimate.sample_usage.service_tiers,
        guard={} if estimate.guard is None else estimate.guard.sample,
    )
    return estimate, manifest


def _new_manifest(spec: JobSpec, now: float) -> BatchManifest:
    return BatchManifest(
        prompts=digest_of(spec),
        model=spec.model.model_dump(mode="json", exclude={"labels"}),
        created_at=now,
        deadline_at=deadline_at(spec, now),
        online_seconds=None,
    )


def _sums_of(pilot: SampleUsage) -> Sums:
    return Sums(
        answered=pilot.requests - pilot.failed,
        failed=pilot.failed,
        input_tokens=pilot.input_tokens,
        output_tokens=pilot.output_tokens,
        cost_nano_usd=round((pilot.cost_usd or 0.0) * NANO),
        unpriced=pilot.requests if pilot.cost_usd is None else 0,
    )


def _discard(spec: JobSpec, manifest: BatchManifest) -> None:
    """Cancels the jobs of an earlier try with other prompts or another model, and deletes its files.

    What cannot be cancelled is named in a warning: it does not keep the job back.
    """
    if not manifest.is_published:
        _log.info("The job has changed since its batch inference began, whose answers are not used.")
        _cancel_jobs(spec, manifest)
    storage.delete(storage.match(f"{spec.paths.batch_uri}**"))


def _cancel_jobs(spec: JobSpec, manifest: BatchManifest) -> None:
    prefix, provider = display_name_prefix(spec), None
    try:
        provider = open_provider(_model_of(spec, manifest), output_uri="")
        listed = {job.name: job for job in provider.find(prefix) if job.display_name in manifest.files}
    except LLMBeamError as error:
        # A process may have ended between a submission and its record.
        files = [name for name in manifest.files if name not in manifest.harvested]
        submitted = [name for name in files if name in manifest.jobs or manifest.submits.get(name)]
        for name in submitted or files:
            named = f"{manifest.jobs[name].name} ({name})" if name in manifest.jobs else name
            _warn(named, manifest, error, provider)
        return
    jobs = {job.name: job for job in manifest.jobs.values() if job.display_name not in manifest.harvested}
    for name, job in {**jobs, **listed}.items():
        try:
            found = job if name in listed else provider.poll(job)  # a list may lag behind
            if found.has_ended or found.display_name not in manifest.files:  # of somebody else, see `Monitor.find`
                continue
            provider.cancel(name)
        except LLMBeamError as error:
            _warn(f"{name} ({job.display_name})", manifest, error, provider)
        else:
            _log.info("Batch-inference job %s (%s) was cancelled.", name, job.display_name)
    for name in manifest.intents:
        unknown = f"of unknown name ({name}), if its creation succeeded,"
        _warn(unknown, manifest, LLMBeamError("It got no reply."), provider)
    with _log_failure("Request files of the earlier try were not deleted"):
        delete_uploads(provider, prefix, manifest.files)


def _model_of(spec: JobSpec, manifest: BatchManifest) -> Model:
    """Returns the model whose credentials are sent to its provider.

    Raises:
        JobSpecError: It is none with batch inference, or has an address to which this job sends no credentials.
    """
    model = parse_model(manifest.model)
    check_batch_model(model)
    address, own = f"{model.address}/", getattr(spec.model, "base_url", None)
    # Others may write to the state of a job: its credentials go to the providers, and where its spec sends them.
    if not is_below(address, model.api.domains) and not (own and address.startswith(f"{own}/")):
        raise JobSpecError(f"{address!r} is not the address of this job, and gets none of its credentials.")
    return model


def _warn(job: str, manifest: BatchManifest, error: LLMBeamError, provider: BatchProvider | None) -> None:
    model = manifest.model
    server = model.get("base_url") or model.get("project")
    sweep = ", or leave it to `SweepBatchInferenceOperator` with that model"
    _log.warning(
        "Batch-inference job %s of an earlier try, of model %r of type %r%s, was not cancelled, and may still run "
        "and bill: %s Cancel it at its provider%s.",
        job,
        model.get("name"),
        model.get("type"),
        f" at {server}" if server else "",
        str(error).removesuffix(f" {JobSpecError.remains}"),
        sweep if provider is not None and provider.has_display_names else "",
    )
