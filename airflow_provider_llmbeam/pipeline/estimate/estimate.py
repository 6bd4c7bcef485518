"""What a job will take, before it runs."""

from __future__ import annotations

import json
from collections.abc import Iterator

from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from pydantic import BaseModel, ConfigDict

from airflow_provider_llmbeam.pipeline.estimate.projection import LimitedBy
from airflow_provider_llmbeam.pipeline.sinks.files import move_in
from airflow_provider_llmbeam.spec.demand import Demand
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model.price import Price


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SampleUsage(_Part):
    """What the estimate itself has asked the model. The answers are in the job's journal: the job has them.

    Attributes:
        requests: Prompts sent now; those that an earlier estimate, or try, has sent are not.
        failed: Of them, those without an answer.
        input_tokens: Billed for them.
        output_tokens: Billed for them.
        cost_usd: At the price of the estimate.
    """

    requests: int
    failed: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None


class Estimate(_Part):
    """A forecast of a job. `rows` = `requests` + `duplicates` + `resumed` + `dead`.

    Attributes:
        name: Of the job.
        model: Type and name.
        made_at: Unix time.
        rows: In the source.
        requests: Prompts that the job has still to send.
        duplicates: Rows that get the answer of an equal prompt.
        resumed: Rows whose answer is in the journal, those of this estimate's own sample included.
        dead: Rows that become no request: no row, no key, or no prompt.
        is_sampled: Whether a part of the source was read, and stands for all of it. Equal prompts are then found
            within that part alone, so there may be fewer requests.
        input_tokens: That `requests` will be billed.
        output_tokens: Likewise, thoughts included.
        output_is_upper_bound: Nothing is known of the answers, and each may be as long as
            `generation.max_output_tokens` allows.
        error_ratio: Half of the 95 % interval of input and output tokens, over them; `None` where fewer than two
            prompts were asked.
        cost_usd: Of these tokens; `None` where no price is known.
        cost_usd_range: Its 95 % interval, or from no answer to the longest ones.
        exceeds_budget: Whether `cost_usd` is above `limits.budget_usd`.
        duration_seconds: Until the last answer, start-up included, if the quota is the job's alone; `None` where
            neither a quota nor the latency is known.
        limited_by: What the requests wait for most.
        latency_seconds: Of an answer, on average.
        asked: What the estimate cost.
        price: That was taken.
        demand: For whoever chooses a machine.
    """

    version: int = 1
    name: str
    model: str
    made_at: float
    rows: int
    requests: int
    duplicates: int
    resumed: int
    dead: int
    is_sampled: bool
    input_tokens: int
    output_tokens: int
    output_is_upper_bound: bool
    error_ratio: float | None
    cost_usd: float | None
    cost_usd_range: tuple[float, float] | None
    exceeds_budget: bool
    duration_seconds: float | None
    limited_by: LimitedBy | None
    latency_seconds: float | None
    asked: SampleUsage
    price: Price | None
    demand: Demand

    def lines(self) -> Iterator[str]:
        """Says it to people."""
        about = "about " if self.is_sampled else ""
        yield (
            f"Rows      {about}{self.rows:,} = {self.requests:,} requests + {self.duplicates:,} duplicate + "
            f"{self.resumed:,} answered already + {self.dead:,} for the dead letter"
        )
        bound = "at most " if self.output_is_upper_bound else ""
        error = "" if self.error_ratio is None else f" (± {max(self.error_ratio, 0.01):.0%})"
        yield f"Tokens    {self.input_tokens:,} in, {bound}{self.output_tokens:,} out{error}"
        yield f"Cost      {self._cost()}"
        yield f"Time      {self._time()}"
        asked = self.asked
        cost = "" if asked.cost_usd is None else f", {usd(asked.cost_usd)}"
        failed = f", {asked.failed:,} without an answer" if asked.failed else ""
        yield (
            f"Asked     {asked.requests:,} requests, {asked.input_tokens:,} tokens in, {asked.output_tokens:,} "
            f"out{cost}{failed}; the job keeps the answers"
        )

    def _cost(self) -> str:
        if self.cost_usd is None or self.price is None:
            return "not known: this model has no list price; `limits.price` sets one"
        between = ""
        if self.cost_usd_range is not None:
            low, high = self.cost_usd_range
            between = f" ({usd(low)} to {usd(high)})"
        bound = "at most " if self.output_is_upper_bound else ""
        rates = (
            f"{usd(self.price.input_usd_per_million_tokens)} and {usd(self.price.output_usd_per_million_tokens)} "
            "per million tokens in and out"
        )
        return f"{bound}{usd(self.cost_usd)}{between} at {rates}"

    def _time(self) -> str:
        if self.duration_seconds is None:
            return "not known: neither a quota (`limits`) nor the model's latency is"
        seconds = round(self.duration_seconds)
        hours, minutes = divmod(round(seconds / 60), 60)
        said = (
            f"{hours} h {minutes:02} min"
            if hours
            else f"{seconds / 60:.1f} min"
            if seconds > 99
            else f"{seconds} s"
        )
        return said if self.limited_by is None else f"{said}, as {_WAITS[self.limited_by]} allows no more"


_WAITS = {
    "requests_per_minute": "`limits.requests_per_minute`",
    "tokens_per_minute": "`limits.tokens_per_minute`",
    "in_flight": "`limits.max_in_flight`",
}


def usd(amount: float) -> str:
    """Writes an amount as people do, small ones with two digits that count."""
    return f"${amount:,.2f}" if amount >= 0.1 or not amount else f"${float(f'{amount:.2g}'):.10f}".rstrip("0")


def estimate_uri(spec: JobSpec) -> str:
    """Where the estimate of a job is."""
    return f"{spec.output_uri}estimate.json"


def write_estimate(spec: JobSpec, estimate: Estimate) -> None:
    """Writes the estimate beside the report, in the place of a former one: aside, then moved in."""
    aside, uri = f"{spec.staging_uri}estimate.json", estimate_uri(spec)
    with FileSystems.create(aside, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        file.write(estimate.model_dump_json(indent=2).encode())
    move_in({aside: uri})


def read_estimate(spec: JobSpec) -> Estimate | None:
    """Reads the estimate of a job; `None` where none was made.

    Raises:
        ValueError: It is torn, or that of another job.
    """
    uri = estimate_uri(spec)
    if not FileSystems.exists(uri):
        return None
    with FileSystems.open(uri, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        found = Estimate.model_validate(json.loads(file.read()))
    if (found.name, found.model) != (spec.name, f"{spec.model.type}:{spec.model.name}"):
        raise ValueError(f"it is of job {found.name!r} with {found.model}")
    return found
