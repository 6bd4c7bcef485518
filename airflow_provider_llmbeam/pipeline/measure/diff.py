"""The diff of two specs of a job: the fields that differ, and what is paid for again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel

from airflow_provider_llmbeam.pipeline.measure.estimate.run import estimate_source
from airflow_provider_llmbeam.pipeline.measure.estimate.source_sample import sample_source
from airflow_provider_llmbeam.redaction import visible
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.counts import usd
from airflow_provider_llmbeam.spec.protocol.kept import QUERY_RAN

Effect = Literal["answers", "prompts", "journal", "none"]

_EFFECTS: dict[Effect, str] = {
    "answers": "changes all answers",
    "prompts": "changes the prompts",
    "journal": "has other answers in its journal",
    "none": "changes no answer",
}

_MAX_CHARACTERS = 200
#: Fields from which the text of a prompt is made, or the rows that become one.
_OF_PROMPTS = ("source.", "prompt.template", "prompt.system", "prompt.variables", "prompt.media")
#: Directories of the journal and the cache: in another one there are other answers.
_OF_JOURNAL = ("name", "state_uri", "sink.uri", "cache")


class ChangedField(BaseModel):
    """A field of the spec with two values.

    Attributes:
        field: Path of the field.
        old: Its value before; empty for none.
        new: Its value now.
        effect: `answers` if all answers are requested again; `prompts` if only those to changed prompts are;
            `journal` if answers are looked for elsewhere; `none` if all answers stay.
    """

    field: str
    old: str
    new: str
    effect: Effect


class SpecDiff(BaseModel):
    """What differs between two specs of a job.

    Attributes:
        changes: The fields that differ.
        rows: Number of rows of the source, estimated for a large one.
        answered: Number of these that have an answer in the journal or the cache of the new spec.
        failed: Number of these for the dead letter, without a request.
        requests: Number of requests that the new spec would send.
        cost_usd: Their cost, in US dollars; `None` if no price is known.
        cost_is_upper_bound: Whether no answer of the new spec is known, so that the cost assumes the longest ones.
        cost_is_of_last_run: Whether it assumes answers as long as those of the last run of the task.
        ran_query: Whether a query was run to read the source, which BigQuery bills.
    """

    changes: tuple[ChangedField, ...]
    rows: int
    answered: int
    failed: int = 0
    requests: int
    cost_usd: float | None
    cost_is_upper_bound: bool
    cost_is_of_last_run: bool = False
    ran_query: bool = False

    @property
    def summary(self) -> str:
        """What the new spec would send, in one sentence."""
        bound = "at most" if self.cost_is_upper_bound else "about"
        basis = " by the tokens of the last run" if self.cost_is_of_last_run else ""
        cost = "" if self.cost_usd is None else f", {bound} {usd(self.cost_usd)}{basis}"
        query = QUERY_RAN if self.ran_query else ""
        failed = f", {self.failed:,} are for the dead letter" if self.failed else ""
        return (
            f"{self.answered:,} of {self.rows:,} rows are answered already{failed}; {self.requests:,} requests "
            f"would be sent{cost if self.requests else ''}. Nothing was sent now.{query}"
        )

    def __str__(self) -> str:
        return "\n".join([*self._lines(), self.summary])

    def _lines(self) -> Iterator[str]:
        if not self.changes:
            yield "The specs are equal."
        for change in self.changes:
            yield f"{visible(change.field)} ({_EFFECTS[change.effect]})"
            for sign, value in (("-", change.old), ("+", change.new)):
                for line in visible(value).splitlines() or ["(none)"]:
                    yield f"  {sign} {line}"


def diff_specs(old: JobSpec, new: JobSpec) -> SpecDiff:
    """Compares the spec that has run with one that would run; reads the source of that, and sends nothing.

    Raises:
        JobSpecError: The source of the new spec has no row to send.
    """
    found = sample_source(new)
    estimate = estimate_source(new, found)
    before, after = (dict(_leaves(spec.model_dump(mode="json"))) for spec in (old, new))
    differing = sorted(each for each in before.keys() | after.keys() if before.get(each) != after.get(each))
    return SpecDiff(
        changes=tuple(
            ChangedField(
                field=field,
                old=_short(before.get(field)),
                new=_short(after.get(field)),
                effect=_effect(field, old, new),
            )
            for field in differing
        ),
        rows=estimate.rows,
        answered=estimate.resumed,
        failed=estimate.failed,
        requests=estimate.requests,
        cost_usd=estimate.cost_usd,
        cost_is_upper_bound=estimate.output_is_upper_bound,
        cost_is_of_last_run=estimate.output_is_of_last_run,
        ran_query=found.ran_query,
    )


def _effect(field: str, old: JobSpec, new: JobSpec) -> Effect:
    if field.startswith(_OF_PROMPTS):
        return "prompts"
    if field.startswith(_OF_JOURNAL):
        return "journal"
    part = field.partition(".")[0]
    if part not in ("model", "generation", "prompt", "embedding"):
        return "none"
    value = getattr(new, part)
    if part == "prompt":  # its texts are named above
        value = old.prompt.model_copy(update={"output_schema": new.prompt.output_schema})
    changed = old.model_copy(update={part: value})
    return "answers" if _fingerprint(old) != _fingerprint(changed) else "none"


def _fingerprint(spec: JobSpec) -> str:
    return spec.fingerprinter()("a text", None)


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value and path not in ("prompt.output_schema", "prompt.variables"):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else name)
    else:
        yield path, value


def _short(value: Any) -> str:
    text = "" if value is None else value if isinstance(value, str) else repr(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]} …"
