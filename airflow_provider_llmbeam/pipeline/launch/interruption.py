"""What is left of a job when somebody presses Ctrl-C."""

from __future__ import annotations

from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.runner import DataflowRunner
from airflow_provider_llmbeam.spec.runner.flink import FlinkRunner


def what_remains(spec: JobSpec | None) -> str:
    """Returns one sentence about what runs, is billed and is kept; `None` for a job that was not read yet."""
    if spec is None:
        return "Nothing was sent or billed."
    if isinstance(spec.runner, DataflowRunner):
        return (
            "The job may be running, and billing, on Dataflow: the same command finds it, and `gcloud dataflow "
            "jobs cancel` ends it."
        )
    if isinstance(spec.runner, FlinkRunner):
        return (
            f"The job may be running, and billing, on the Flink cluster at {spec.runner.rest_url}: its page, or "
            "PATCH /jobs/ID?mode=cancel, ends it."
        )
    rest = f"The answers so far are in {spec.journal_uri!r}; the same command sends only the rest."
    if spec.inference.mode != "online":
        rest += " Batch-inference jobs go on, and bill: the same command finds them and uses their answers."
    return rest
