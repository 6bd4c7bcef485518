"""The state of a job's batch inference, kept beside its journal until the job has published."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from airflow_provider_llmbeam.engine.state_version import refuse_newer
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.batch_inference.decide import MonitorHistory
from airflow_provider_llmbeam.pipeline.cascade.report import paid_tally, stage_nano_usd
from airflow_provider_llmbeam.pipeline.reporting.report import FullPrice
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally, add_up
from airflow_provider_llmbeam.providers.batch import BatchJob
from airflow_provider_llmbeam.spec.demand import END_OF_TIME
from airflow_provider_llmbeam.spec.facts import ASSUMED_PRIORITY_RATIO, TIER_RATIOS
from airflow_provider_llmbeam.spec.identity import display_name_prefix
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.counts import NANO

_log = logging.getLogger("llmbeam")

#: Fields of a detector of type `dlp` that say how texts are inspected, and not what is found in them.
_OF_INSPECTION = {"project", "location", "base_url", "requests_per_minute", "max_in_flight"}
#: Number of different errors that are counted, and of characters of each, and number that the log shows.
MAX_ERRORS, ERROR_CHARACTERS, _SHOWN_ERRORS = 50, 200, 3
_RATIOS: dict[Any, float] = {**TIER_RATIOS, "priority": ASSUMED_PRIORITY_RATIO}
#: Sums of the pilot, which is the sample of the estimate and left out of its comparison with the run.
_OF_ESTIMATE = ("input_tokens", "output_tokens", "cost_nano_usd")


_Time = Annotated[float, Field(ge=0, le=END_OF_TIME)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class RequestFile(_Part):
    """One request file, which becomes one batch-inference job.

    It has no address: others may write to the state of a job, and what this names is uploaded.

    Attributes:
        digest: Digest of the fingerprints in it: the same prompts give the same digest, in any order. The file is
            named by it, see `JobPaths.requests_uri` and `JobPaths.index_uri`.
        rows: Number of requests.
        size: Size in bytes.
        input_tokens: Estimated input tokens.
    """

    digest: Annotated[str, Field(pattern="^[0-9a-f]+$")]
    rows: PositiveInt
    size: NonNegativeInt
    input_tokens: NonNegativeInt


class Sums(_Part):
    """What the result lines of one job contained.

    Attributes:
        answered: Number of answers and refusals, which are in the journal.
        failed: Number of requests that the provider failed, or whose answer is of no use; they are sent online.
        unusable: Those of them that the provider counts as answered, e.g. with an empty answer.
        malformed: Number of lines that are no result of a request of the job. Prompts without a result are sent
            online.
        input_tokens: Billed input tokens.
        output_tokens: Billed output tokens.
        cached_tokens: Billed input tokens from the provider's cache, which `input_tokens` includes.
        cache_write_tokens: Billed input tokens written to that cache, which `input_tokens` includes.
        reasoning_tokens: Billed output tokens of thoughts, which `output_tokens` includes.
        estimated_tokens: Tokens of these that the provider did not report, estimated from the length of the texts.
        cost_nano_usd: Cost of these tokens, in billionths of a US dollar.
        unpriced: Number of answers whose price is not known.
        errors: Numbers of failed rows by kind and message, of the commonest.
    """

    answered: NonNegativeInt = 0
    failed: NonNegativeInt = 0
    unusable: NonNegativeInt = 0
    malformed: NonNegativeInt = 0
    input_tokens: NonNegativeInt = 0
    output_tokens: NonNegativeInt = 0
    cached_tokens: NonNegativeInt = 0
    cache_write_tokens: NonNegativeInt = 0
    reasoning_tokens: NonNegativeInt = 0
    estimated_tokens: NonNegativeInt = 0
    cost_nano_usd: NonNegativeInt = 0
    unpriced: NonNegativeInt = 0
    errors: dict[str, NonNegativeInt] = {}

    @property
    def commonest_errors(self) -> str:
        """The commonest errors with their numbers, as text; empty if no row failed."""
        found = Counter(self.errors).most_common(_SHOWN_ERRORS)
        return "; ".join(f"{number:,} × {message}" for message, number in found)

    @classmethod
    def total(cls, parts: Iterable[Sums]) -> Sums:
        """Returns the sums of all parts."""
        total: Counter[str] = Counter()
        errors: Counter[str] = Counter()
        for part in parts:
            numbers = dict(part)
            errors.update(numbers.pop("errors"))
            total.update(numbers)
        return cls(**total, errors=dict(errors.most_common(MAX_ERRORS)))


class BatchManifest(_Part):
    """The state of a job's batch inference.

    Attributes:
        prompts: Digest of what the request files were made of, see `digest_of`.
        model: The model without its labels, whose provider has the jobs.
        created_at: Unix time.
        deadline_at: Unix time by which the answers are needed; `None` for none.
        online_seconds: Time that all rows of the files take online, in seconds; `None` if it is not known.
        files: Request files by display name of their job, which is written before the job is submitted: a later
            try finds the job by it.
        submits: Number of submissions by display name, without those that failed over the token limit.
        over_limit: Names of the jobs that failed over it, see `BatchJob.was_over_quota`.
        jobs: The newest job of each file as it was submitted, by display name: a list of jobs may lag behind.
        intents: Unix time before the creation of each job whose reply is not recorded, by display name: at an API
            whose jobs have no name, see `adopt`.
        history: What the polls so far have left for the next one.
        pilot: Sums of the prompts that were sent online before.
        pilot_tiers: Its answers by the tier that served them.
        harvested: Sums by display name.
        unreturned: Number of answers that a job has counted, and not returned, by display name.
        guard: Numbers of the requests to a guard model for the pilot and the request files by what was judged,
            e.g. `input.tokens.output`, see `moderation.verdict.usage_of`.
        cascade: What the calibration and the stages of a cascade have cost before the request files were written,
            see `cascade.report.paid_by_name`.
        is_over: Whether the rest is sent online.
        over_because: Why.
        is_budget_spent: Whether a try has ended as its budget was spent; the next one begins with a new budget.
        is_published: Whether the job has published, so that only jobs and files are left to delete.
    """

    version: int = 1
    prompts: str
    model: dict[str, Any] = {}
    created_at: _Time
    deadline_at: _Time | None = None
    online_seconds: float | None = None
    files: dict[str, RequestFile] = {}
    submits: dict[str, NonNegativeInt] = {}
    over_limit: tuple[str, ...] = ()
    jobs: dict[str, BatchJob] = {}
    intents: dict[str, _Time] = {}
    history: MonitorHistory = MonitorHistory()
    pilot: Sums = Sums()
    pilot_tiers: dict[str, NonNegativeInt] = {}
    harvested: dict[str, Sums] = {}
    unreturned: dict[str, NonNegativeInt] = {}
    guard: dict[Annotated[str, Field(pattern=r"^\w+\.\w+\.\w+$")], NonNegativeInt] = {}
    cascade: dict[str, NonNegativeInt] = {}
    is_over: bool = False
    over_because: str = ""
    is_budget_spent: bool = False
    is_published: bool = False

    def changed(self, **fields: object) -> Self:
        """Returns the manifest with other values of some fields."""
        return self.model_copy(update=fields)

    @property
    def total(self) -> Sums:
        """Sums of the pilot and of all jobs."""
        return Sums.total((self.pilot, *self.harvested.values()))

    @property
    def cost_usd(self) -> float:
        """Cost of its tokens in US dollars; tokens without a known price are left out."""
        return (self.total.cost_nano_usd + stage_nano_usd(self.cascade)) / NANO

    @property
    def budgeted_usd(self) -> float:
        """Cost that counts for the budget of this try, in US dollars."""
        return 0.0 if self.is_budget_spent else self.cost_usd

    def with_remaining_budget(self, spec: JobSpec) -> JobSpec:
        """Returns a job with what this batch inference has left of its budgets."""
        if self.is_budget_spent:
            return spec
        if (budget := spec.limits.budget_usd) is not None:
            limits = spec.limits.model_copy(update={"budget_usd": max(budget - self.cost_usd, 1e-9)})
            spec = spec.model_copy(update={"limits": limits})
        moderation = spec.safety.moderation
        if moderation is not None and (budget := moderation.limits.budget_usd) is not None:
            spent = sum(number for name, number in self.guard.items() if name.endswith(".cost.nano_usd")) / NANO
            limits = moderation.limits.model_copy(update={"budget_usd": max(budget - spent, 1e-9)})
            moderation = moderation.model_copy(update={"limits": limits})
            safety = spec.safety.model_copy(update={"moderation": moderation})
            spec = spec.model_copy(update={"safety": safety})
        return spec

    def full_price(self, tally: Tally) -> FullPrice | None:
        """Returns what was sent online instead, with its reason; `None` if all rows have an answer.

        Args:
            tally: Sums over all rows of the run, with its own `tally`.
        """
        harvested = Sums.total(self.harvested.values())
        rows = sum(file.rows for file in self.files.values()) - harvested.answered
        if rows <= 0:
            return None
        costs = (
            tally.costs - Counter({self._pilot_tier: self.pilot.cost_nano_usd}) - paid_tally(self.cascade).costs
        )
        extra = sum(
            nano * (1 - TIER_RATIOS["batch"] / ratio)
            for tier, nano in costs.items()
            if (ratio := _RATIOS.get(tier))  # what is prepaid has cost nothing
        )
        return FullPrice(
            rows=rows,
            extra_usd=None if tally.sums["unpriced"] else round(extra / NANO, 6),
            because="; ".join(filter(None, (self.over_because, harvested.commonest_errors))),
        )

    @property
    def _pilot_tier(self) -> str:
        """Tier of the pilot; one of several tiers is in the costs at the most frequent one."""
        return next((tier for tier, _ in Counter(self.pilot_tiers).most_common(1)), "standard")

    def tally(self) -> Tally:
        """Returns what this batch inference adds to the sums of the report."""
        sums = dict(self.total)
        errors = sums.pop("errors")
        requests = sums.pop("answered") + sums.pop("failed")
        tiers = Counter(self.pilot_tiers)
        costs = {
            self._pilot_tier: self.pilot.cost_nano_usd,
            "batch": sums["cost_nano_usd"] - self.pilot.cost_nano_usd,
        }
        if harvested := Sums.total(self.harvested.values()).answered:
            tiers["batch"] = harvested
        unreturned = sum(self.unreturned.values())
        of_pilot = {f"pilot_{name}": number for name, number in self.pilot if name in _OF_ESTIMATE}
        of_stages = paid_tally(self.cascade)
        total = Tally(
            sums=Counter(
                {**sums, **of_pilot, "requests": requests, "unreturned": unreturned, "batch_prompts": harvested}
            ),
            tiers=tiers,
            batch_errors=Counter(errors),
            costs=Counter(costs),
            moderation=Counter({_names(name): number for name, number in self.guard.items()}),
        )
        return add_up([total, of_stages])


def _names(name: str) -> tuple[str, str, str]:
    side, group, of = name.split(".")
    return side, group, of


def digest_of(spec: JobSpec) -> str:
    """Returns a digest of what decides the prompts of a job, and the model that answers them.

    A run with another digest has other prompts; the jobs of the earlier one would be paid for nothing. Defaults
    are no part of it, so that a later version with more fields finds the jobs of this one.
    """
    decisive = spec.model_dump(
        mode="json",
        exclude_defaults=True,
        include={"source", "prompt", "model", "generation", "embedding", "task", "cache"},
        exclude={"model": {"labels"}},
    )
    if (privacy := spec.safety.privacy) is not None:  # what is masked has placeholders in the prompts
        decisive["privacy"] = privacy.model_dump(
            mode="json",
            exclude_defaults=True,
            include={"columns", "detectors", "action", "actions"},
            exclude={"detectors": {"__all__": _OF_INSPECTION}},
        )
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]


def read_manifest(spec: JobSpec) -> BatchManifest | None:
    """Returns the manifest of an earlier run that has not published; `None` if there is none that can be read.

    Raises:
        JobFailedError: A newer version of the package wrote it.
    """
    uri = spec.paths.manifest_uri
    if not storage.exists(uri):
        return None
    content = storage.read(uri)
    refuse_newer(uri, content)
    try:
        manifest = BatchManifest.model_validate_json(content)
        if manifest.files == files_by_name(spec, manifest.files.values()):
            return manifest
        fault = "it names jobs that are not of this job"
    except ValidationError as error:
        fault = f"{error.error_count()} faults, the first is {error.errors()[0]['msg']}"
    _log.warning(
        "The state of batch inference in %r cannot be read and is passed over: %s. Batch-inference jobs of this "
        "job that still run are found by their display name.",
        uri,
        fault,
    )
    return None


def files_by_name(spec: JobSpec, files: Iterable[RequestFile]) -> dict[str, RequestFile]:
    """Returns request files by the display names of their jobs."""
    prefix = display_name_prefix(spec)
    return {f"{prefix}{file.digest}": file for file in files}


def write_manifest(spec: JobSpec, manifest: BatchManifest) -> None:
    """Writes the manifest; a reader finds the old one or the new one."""
    storage.replace(spec.paths.manifest_uri, manifest.model_dump_json(indent=1).encode())
