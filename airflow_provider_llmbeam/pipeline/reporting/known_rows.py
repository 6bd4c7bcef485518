"""The line of a log that says how many rows an earlier run has answered, and why others are sent again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from airflow_provider_llmbeam.pipeline.reporting.history import (
    RunSummary,
    changed_parts,
    part_digests,
    prompt_digest,
    read_history,
)
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.counts import Counts, usd

_log = logging.getLogger("llmbeam")


def known_rows_told(spec: JobSpec) -> Callable[[Counts], None]:
    """Returns a function that logs one line when it is called with counts of a running job that sends requests.

    At the first request of a job that runs in one process, all rows have been looked up in the journal, unless the
    rows are turns of conversations, which are looked up one after the other.
    """
    is_told = spec.conversation is not None

    def watch(counts: Counts) -> None:
        nonlocal is_told
        if is_told or not counts.requests or counts.done >= counts.rows:
            return
        is_told = True
        _log.info("%s", known_rows_line(spec, counts, read_history(spec).runs))

    return watch


def known_rows_line(spec: JobSpec, counts: Counts, runs: Sequence[RunSummary]) -> str:
    """Returns the line: how many rows are answered already, what the others cost, and what has changed.

    Args:
        spec: The job.
        counts: Its counts at the first request.
        runs: Its last runs, the oldest first.
    """
    known = f"{counts.resumed:,} of {counts.rows:,} rows are answered already"
    left = counts.rows - counts.resumed
    if not left or not runs:
        return f"{known}."
    last, model = runs[-1], f"{spec.model.type}:{spec.model.name}"
    prompts = left - counts.duplicates - counts.failed
    known = f"{known}; the other {left:,} are sent{f' as {prompts:,} prompts' if prompts != left else ''}"
    if last.model != model:
        return (
            f"{known}, as the model was {last.model!r} in the last run, whose answers are not used for {model!r}."
        )
    if last.cost_usd and last.paid:
        known += f", for about {usd(last.cost_usd / last.paid * prompts)} by the last run's cost of an answer"
    if changed := changed_parts(part_digests(spec), last.parts):
        return f"{known}: {changed} changed since then."
    if last.prompt != prompt_digest(spec):
        return f"{known}: the prompt or its parameters changed since then."
    return f"{known}."
