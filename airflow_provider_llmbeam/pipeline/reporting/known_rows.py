"""The line of a log that says how many rows an earlier run has answered, and why others are sent again."""

from __future__ import annotations

import logging
from collections.abc import Callable

from airflow_provider_llmbeam.counts import Counts
from airflow_provider_llmbeam.pipeline.reporting.history import prompt_digest, read_history
from airflow_provider_llmbeam.spec.job import JobSpec

_log = logging.getLogger("llmbeam")


def known_rows_told(spec: JobSpec) -> Callable[[Counts], None]:
    """Returns a function that logs one line when it is called with counts of a running job that sends requests.

    At the first request of a job that runs in one process, all rows have been looked up in the journal.
    """
    is_told = False

    def watch(counts: Counts) -> None:
        nonlocal is_told
        if is_told or not counts.requests or counts.done >= counts.rows:
            return
        is_told = True
        why = _change_since_last_run(spec) if counts.resumed < counts.rows else ""
        _log.info("%s of %s rows are answered already.%s", f"{counts.resumed:,}", f"{counts.rows:,}", why)

    return watch


def _change_since_last_run(spec: JobSpec) -> str:
    runs = read_history(spec).runs
    if not runs:
        return ""
    model = f"{spec.model.type}:{spec.model.name}"
    if runs[-1].model != model:
        return f" The model was {runs[-1].model!r} in the last run: its answers are not used for {model!r}."
    if runs[-1].prompt != prompt_digest(spec):
        return " The prompt or its parameters have changed since the last run, so its answers are not used."
    return ""
