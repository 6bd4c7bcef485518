"""Decides what follows from a poll of a job: pure, and the same in the triggerer and in the worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from airflow_provider_llmbeam.exceptions import AccessDeniedError, CloudError, CloudNotFoundError
from airflow_provider_llmbeam.polling.poller import Wait
from airflow_provider_llmbeam.polling.schedule import ConsecutiveFailures
from airflow_provider_llmbeam.spec.protocol.counts import usd
from airflow_provider_llmbeam.spec.remote_job import RemoteJob

#: Interval between polls of a job that is being cancelled, in seconds.
CANCELLING_SECONDS = 10.0
#: Longest wait between two failed polls, in seconds.
MAX_WAIT_SECONDS = 300.0
#: Limits on consecutive failed polls; waiting ends when both are reached.
MAX_FAILURES = 10
MAX_FAILING_SECONDS = 900.0
#: Limits on consecutive polls with the same refusal. A job that was just created may be unknown for a moment.
MAX_NOT_FOUND = 5
MAX_DENIED = 3
#: Time limit for the end of a cancelled job, in seconds.
MAX_CANCELLING_SECONDS = 900.0

JobOutcome = Literal["succeeded", "failed", "cancelled", "over_budget", "unreachable"]


@dataclass(frozen=True, slots=True)
class Follow:
    """Poll another job, which continues the work."""

    job_id: str


@dataclass(frozen=True, slots=True)
class OverBudget:
    """Cancel the job, then poll again."""

    cost_usd: float


@dataclass(frozen=True, slots=True)
class JobEnded:
    """Waiting is over.

    Attributes:
        outcome: How it ended.
        reason: Rest of a sentence that begins with "Dataflow job '…' " or "Flink job '…' ".
        may_run: Whether the job may still be running and billing.
    """

    outcome: JobOutcome
    reason: str
    may_run: bool = False


JobDecision = Wait | Follow | OverBudget | JobEnded


class JobStateMachine:
    """Decides after each poll.

    Args:
        poll_interval_seconds: Interval between polls, in seconds.
        budget_usd: Cost above which the job is cancelled, in US dollars; `None` for no limit.
        service: Name of the service, for messages.
    """

    def __init__(
        self, poll_interval_seconds: float, budget_usd: float | None = None, *, service: str = "Dataflow"
    ) -> None:
        self._service = service
        self._interval = poll_interval_seconds
        self._budget_usd = budget_usd
        self.failures = ConsecutiveFailures()
        #: Unknown state that a warning was returned for.
        self._warned_of = ""
        #: Time at which the cost first exceeded the budget, in seconds of the Unix epoch, and the last such cost.
        self._over_budget_since: float | None = None
        self._over_budget_usd = 0.0

    @property
    def has_budget(self) -> bool:
        """Whether the cost of the job is limited."""
        return self._budget_usd is not None

    def on_job(self, job: RemoteJob, cost_usd: float | None, now: float) -> JobDecision:
        """Decides after a successful poll.

        Args:
            job: The job.
            cost_usd: Cost of the tokens counted so far, in US dollars; `None` if it is unknown.
            now: Seconds of the Unix epoch.
        """
        self.failures = ConsecutiveFailures()
        match job.phase:
            case "done":
                return JobEnded("succeeded", "is done.")
            case "failed":
                return JobEnded("failed", "failed.")
            case "replaced" if job.replaced_by:
                return Follow(job.replaced_by)
            case "replaced":
                return JobEnded(
                    "failed",
                    "was updated, and Dataflow does not name the job that replaced it. That one may be running "
                    "and billing.",
                    may_run=True,
                )
        cost = self._over_budget(cost_usd, now)
        if job.phase in ("cancelled", "drained"):
            if cost is not None:
                return JobEnded("over_budget", f"was cancelled: {self._budget_message(cost)}.")
            return JobEnded("cancelled", f"was {job.phase} before it finished, and not by this task.")
        if cost is not None:
            return self._cancelling(job, cost, now)
        return Wait(self._interval, self._warning(job))

    def on_error(self, error: CloudError, now: float) -> JobDecision:
        """Decides after a failed poll.

        Args:
            error: Error of the poll.
            now: Seconds of the Unix epoch.
        """
        self.failures = failures = self.failures.add(error, now)
        if isinstance(error, CloudNotFoundError) and failures.kind_count >= MAX_NOT_FOUND:
            return JobEnded(
                "failed", f"is not known to {self._service}, which was polled {failures.kind_count} times: {error}"
            )
        is_denied = isinstance(error, AccessDeniedError) and failures.kind_count >= MAX_DENIED
        if is_denied or failures.exceeds(MAX_FAILURES, MAX_FAILING_SECONDS, now):
            return JobEnded(
                "unreachable",
                f"could not be polled {failures.count} times in a row, for {failures.seconds(now) / 60:.0f} min: "
                f"{error} It was not cancelled: it may still be running and billing.",
                may_run=True,
            )
        return Wait(
            failures.wait_seconds(self._interval, MAX_WAIT_SECONDS),
            f"{error} Polling again (consecutive failures: {failures.count}).",
        )

    def _over_budget(self, cost_usd: float | None, now: float) -> float | None:
        """Returns the cost of the job if it has ever exceeded the budget."""
        if self._budget_usd is None:
            return None
        if cost_usd is not None and cost_usd > self._budget_usd:
            self._over_budget_since = now if self._over_budget_since is None else self._over_budget_since
            self._over_budget_usd = cost_usd
        return None if self._over_budget_since is None else self._over_budget_usd

    def _cancelling(self, job: RemoteJob, cost_usd: float, now: float) -> JobDecision:
        since = now if self._over_budget_since is None else self._over_budget_since
        if now - since > MAX_CANCELLING_SECONDS:
            return JobEnded(
                "over_budget",
                f"is still in state {job.state}, {(now - since) / 60:.0f} min after the request to cancel it: "
                f"{self._budget_message(cost_usd)}. It may still be running and billing.",
                may_run=True,
            )
        # Requested again until the state shows it: the request before may have been lost.
        return Wait(CANCELLING_SECONDS) if job.phase == "cancelling" else OverBudget(cost_usd)

    def _budget_message(self, cost_usd: float) -> str:
        allowed = f"`limits.budget_usd` allows {usd(self._budget_usd or 0)}"
        return f"its tokens so far cost {usd(cost_usd)}, and {allowed}"

    def _warning(self, job: RemoteJob) -> str | None:
        if job.phase != "unknown" or job.state == self._warned_of:
            return None
        self._warned_of = job.state
        return f"{self._service} reports state {job.state!r}, which this version does not know; waiting on."
