"""What follows from a look at a job. One decision for the triggerer and for a worker that waits itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

from airflow_provider_llmbeam.exceptions import AccessDeniedError, CloudError, CloudNotFoundError
from airflow_provider_llmbeam.google_cloud.dataflow_job import PHASES, DataflowJob
from airflow_provider_llmbeam.polling.poller import Wait

#: Between two looks at a job that is being cancelled.
CANCELLING_SECONDS = 10.0
#: Longest wait between two failed looks.
MAX_WAIT_SECONDS = 300.0
#: Failed looks in a row, and their time, before waiting ends: whichever is later.
MAX_FAILURES = 10
MAX_FAILING_SECONDS = 900.0
#: The same refusal in a row. A job that was just created may be unknown for a moment.
MAX_NOT_FOUND = 5
MAX_DENIED = 3
#: For a cancelled job to end.
MAX_CANCELLING_SECONDS = 900.0

JobOutcome = Literal["succeeded", "failed", "cancelled", "over_budget", "unreachable"]


@dataclass(frozen=True, slots=True)
class Follow:
    """Look at another job at once: it goes on with the work."""

    job_id: str


@dataclass(frozen=True, slots=True)
class OverBudget:
    """Cancel the job, then look again."""

    cost_usd: float


@dataclass(frozen=True, slots=True)
class JobEnded:
    """Waiting is over.

    Attributes:
        outcome: How it ended.
        reason: In words that go on from "Dataflow job '…' ".
        may_run: Whether the job may still be running and billing.
    """

    outcome: JobOutcome
    reason: str
    may_run: bool = False


JobDecision = Wait | Follow | OverBudget | JobEnded


@dataclass(frozen=True, slots=True)
class JobPollHistory:
    """What one look must know of those before it.

    Attributes:
        failures: Failed looks in a row.
        failing_since: When the first of them was, in seconds of the Unix epoch.
        refusal: Class of the last failure.
        refusals: How many in a row were of that class.
        warned_of: The unknown state that was warned of.
        over_budget_since: When the job was first seen over its budget, in seconds of the Unix epoch.
        over_budget_usd: What it had cost then.
    """

    failures: int = 0
    failing_since: float | None = None
    refusal: str = ""
    refusals: int = 0
    warned_of: str | None = None
    over_budget_since: float | None = None
    over_budget_usd: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Reads what `to_dict` wrote."""
        return cls(**data)


class JobStateMachine:
    """Decides after each look.

    Args:
        poll_interval_seconds: Between two looks.
        budget_usd: Of `limits`; the job is cancelled beyond it.
        memory: Of looks before.
    """

    def __init__(
        self, poll_interval_seconds: float, budget_usd: float | None = None, memory: JobPollHistory | None = None
    ) -> None:
        self._interval = poll_interval_seconds
        self._budget_usd = budget_usd
        self.memory = memory or JobPollHistory()

    @property
    def watches_budget(self) -> bool:
        """Whether the cost of the job has a bound."""
        return self._budget_usd is not None

    def on_job(self, job: DataflowJob, cost_usd: float | None, now: float) -> JobDecision:
        """After a look that saw the job.

        Args:
            job: As it was seen.
            cost_usd: Of the tokens counted so far; `None` where that is not known.
            now: Seconds of the Unix epoch.
        """
        self.memory = replace(self.memory, failures=0, failing_since=None, refusal="", refusals=0)
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
        if job.phase == "cancelled":
            if cost is not None:
                return JobEnded("over_budget", f"was cancelled: {self._budget_words(cost)}.")
            how = "drained" if job.state == "JOB_STATE_DRAINED" else "cancelled"
            return JobEnded("cancelled", f"was {how} before its end, and not by this task.")
        if cost is not None:
            return self._cancelling(job, cost, now)
        return Wait(self._interval, self._warning(job.state))

    def on_error(self, error: CloudError, now: float) -> JobDecision:
        """After a look that saw nothing.

        Args:
            error: Why.
            now: Seconds of the Unix epoch.
        """
        memory, refusal = self.memory, type(error).__name__
        since = now if memory.failing_since is None else memory.failing_since
        self.memory = memory = replace(
            memory,
            failures=memory.failures + 1,
            failing_since=since,
            refusal=refusal,
            refusals=memory.refusals + 1 if refusal == memory.refusal else 1,
        )
        if isinstance(error, CloudNotFoundError) and memory.refusals >= MAX_NOT_FOUND:
            return JobEnded(
                "failed", f"is not known to Dataflow, which was asked {memory.refusals} times: {error}"
            )
        too_often = memory.failures >= MAX_FAILURES and now - since >= MAX_FAILING_SECONDS
        if too_often or (isinstance(error, AccessDeniedError) and memory.refusals >= MAX_DENIED):
            return JobEnded(
                "unreachable",
                f"could not be looked at {memory.failures} times in a row, for {(now - since) / 60:.0f} min: "
                f"{error} It was left as it is: it may still be running and billing.",
                may_run=True,
            )
        # The exponent is bounded: the power of a long row of failures is more than a float holds.
        wait = min(self._interval * 2.0 ** min(memory.failures - 1, 30), MAX_WAIT_SECONDS)
        return Wait(max(wait, self._interval), f"{error} Looking again (failure {memory.failures} in a row).")

    def _over_budget(self, cost_usd: float | None, now: float) -> float | None:
        """What the job cost, once that was ever beyond the budget."""
        if self._budget_usd is None:
            return None
        if cost_usd is not None and cost_usd > self._budget_usd:
            since = self.memory.over_budget_since
            self.memory = replace(
                self.memory, over_budget_since=now if since is None else since, over_budget_usd=cost_usd
            )
        return None if self.memory.over_budget_since is None else self.memory.over_budget_usd

    def _cancelling(self, job: DataflowJob, cost_usd: float, now: float) -> JobDecision:
        since = now if self.memory.over_budget_since is None else self.memory.over_budget_since
        if now - since > MAX_CANCELLING_SECONDS:
            return JobEnded(
                "over_budget",
                f"is still in state {job.state}, {(now - since) / 60:.0f} min after it was to be cancelled: "
                f"{self._budget_words(cost_usd)}. It may still be running and billing.",
                may_run=True,
            )
        # Asked again as long as the state does not show it: the request before may have been lost.
        return Wait(CANCELLING_SECONDS) if job.state == "JOB_STATE_CANCELLING" else OverBudget(cost_usd)

    def _budget_words(self, cost_usd: float) -> str:
        allowed = f"`limits.budget_usd` allows ${self._budget_usd or 0:,.2f}"
        return f"its tokens so far cost ${cost_usd:,.2f}, and {allowed}"

    def _warning(self, state: str) -> str | None:
        if state in PHASES or state == self.memory.warned_of:
            return None
        self.memory = replace(self.memory, warned_of=state)
        return f"Dataflow says {state!r}, a state that this version does not know. It is waited for."
