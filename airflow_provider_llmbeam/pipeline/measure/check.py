"""The check of a job: what it would ask, without a request to a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from airflow_provider_llmbeam.pipeline.measure.estimate.estimate import Estimate
from airflow_provider_llmbeam.pipeline.measure.estimate.run import estimate_source
from airflow_provider_llmbeam.pipeline.measure.estimate.source_sample import FailedKind, sample_source
from airflow_provider_llmbeam.pipeline.measure.preview import WantedRows, preview_rows
from airflow_provider_llmbeam.providers.batch import open_provider
from airflow_provider_llmbeam.spec.evaluation import PreviewSample
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.counts import usd
from airflow_provider_llmbeam.spec.protocol.preview import Preview
from airflow_provider_llmbeam.spec.sink import Sink


class JobCheck(BaseModel):
    """What a valid job would do.

    Attributes:
        name: Name of the job.
        model: Type and name of the model.
        server: Server that answers.
        sink: Where the answers would be.
        estimate: Its requests, and their cost without a sample; `None` for conversations.
        failures: The rows for the dead letter by kind of failure, of those that were read.
        preview: Some rows with their prompts; `None` for conversations.
        exceeds_budget: Whether the cost is above `limits.budget_usd`.
        limits: Limits that are set.
        ignored: Parameters that the model does not take.
        batch_lacks: What the batch inference of the server lacks, of a job that asks for it.
    """

    name: str
    model: str
    server: str
    sink: str
    estimate: Estimate | None
    failures: tuple[FailedKind, ...] = ()
    preview: dict[str, Any] | None
    exceeds_budget: bool
    limits: dict[str, Any]
    ignored: tuple[str, ...]
    batch_lacks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"Job       {self.name}"
        yield f"Model     {self.model}, server {self.server}"
        yield f"Sink      {self.sink}"
        yield f"Limits    {', '.join(f'{name} {value}' for name, value in self.limits.items()) or 'none'}"
        for name in self.ignored:
            yield f"Ignored   `generation.{name}`, which the model does not take"
        for lack in self.batch_lacks:
            yield f"Batches   {lack}"
        if self.estimate is not None:
            yield from self.estimate.lines()
        for failure in self.failures:
            yield f"Failed    {failure}"
        if self.estimate is not None and self.exceeds_budget:
            budget = usd(self.estimate.budget_usd or 0.0)
            yield f"Budget    {budget} is exceeded: the job would fail before its last row"
        if self.preview is None:
            yield "Turns of conversations depend on their answers: no row is shown.\nNothing was sent or billed."
        else:
            yield f"\n{Preview.of(self.preview)}"


def check_job(spec: JobSpec, sample: PreviewSample) -> JobCheck:
    """Reads the source of a job and renders its prompts; sends nothing to the model.

    Args:
        spec: The job, whose keys and sink were checked.
        sample: The rows to show.

    Raises:
        JobSpecError: The source is empty, no row becomes a prompt, or the server has no batch inference.
    """
    lacks: tuple[str, ...] = ()
    if spec.inference.mode != "online":
        lacks = open_provider(spec.model, output_uri=spec.paths.batch_uri).probe()
    estimate = preview = None
    failures: list[FailedKind] = []
    if spec.conversation is None:
        sample = sample.model_copy(update={"sends": False})
        wanted = WantedRows(spec, sample)
        found = sample_source(spec, also=wanted.add)
        estimate = estimate_source(spec, found)
        failures += [*found.failures.values(), *found.refusals.values()]
        preview = preview_rows(spec, sample, wanted.end(), ran_query=found.ran_query).plain()
    return JobCheck(
        name=spec.name,
        model=f"{spec.model.type}:{spec.model.name}",
        server=str(spec.server),
        sink=f"{spec.sink.type} {_place(spec.sink)}",
        estimate=estimate,
        failures=tuple(failures),
        preview=preview,
        exceeds_budget=estimate is not None and estimate.exceeds_budget,
        limits=spec.limits.model_dump(mode="json", exclude_defaults=True),
        ignored=tuple(spec.model.parameters.find_ignored(spec.generation)),
        batch_lacks=lacks,
    )


def _place(sink: Sink) -> str:
    names = (getattr(sink, name, None) for name in ("table", "collection", "topic", "uri"))
    return str(next(filter(None, names)))
