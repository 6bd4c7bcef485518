"""Names and labels by which a submitted job, and what it creates at a provider, are found again."""

from __future__ import annotations

import hashlib
import re

from airflow_provider_llmbeam.spec.endpoint.identity import (
    DAG_LABEL,
    ENDPOINT_LABEL,
    RUN_LABEL,
    TASK_LABEL,
    endpoint_of_model,
    label_value,
)
from airflow_provider_llmbeam.spec.fields.names import DEPLOYMENT_LABEL
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model import GeminiModel
from airflow_provider_llmbeam.spec.source import PubSubSource

#: Label of a Dataflow job: identity of the job, the same for every attempt.
JOB_LABEL = "llmbeam-job"
#: Label of a Dataflow job: digest of its spec.
SPEC_LABEL = "llmbeam-spec"


def identity(name: str, deployment: str = "") -> str:
    """Returns the name of a job or an endpoint as labels of Google Cloud allow it: at most 54 of a-z, 0-9 and -.

    Names that differ only in punctuation or case get different identities; so do equal names of two deployments.

    Args:
        name: Any text.
        deployment: Airflow deployment; empty without Airflow.
    """
    readable = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:41].rstrip("-")
    digest = hashlib.sha256((f"{deployment}\0{name}" if deployment else name).encode()).hexdigest()[:12]
    return f"{readable if readable[:1].isalpha() else f'j{readable}'[:41]}-{digest}"


def job_identity(spec: JobSpec) -> str:
    """Returns the identity of a job, which is the same for every attempt."""
    return identity(spec.name, spec.deployment)


def dead_letter_topic(spec: JobSpec, source: PubSubSource) -> str:
    """Returns the topic of Pub/Sub with the messages that a stream cannot answer."""
    project = source.subscription.split("/")[1]
    default = f"projects/{project}/topics/llmbeam-{job_identity(spec)}-dead-letter"
    return spec.stream.dead_letter_topic or default


def spec_digest(spec: JobSpec) -> str:
    """Returns 8 hexadecimal digits of the spec without alerts, traces and Dag run, which change no answer.

    Defaults are no part of it, so that a later version with more fields finds the jobs of this one.
    """
    plain = spec.model_dump_json(exclude_defaults=True, exclude={"alerts", "airflow_run", "trace_id", "traces"})
    return hashlib.sha256(plain.encode()).hexdigest()[:8]


def dataflow_name(spec: JobSpec) -> str:
    """Returns the name of the job on Dataflow, which runs one job per name; a changed spec is another job."""
    return f"{job_identity(spec)}-{spec_digest(spec)}"


def run_label(spec: JobSpec) -> str | None:
    """Returns the label of the task and run that a job is of; `None` without Airflow."""
    run = spec.airflow_run
    return None if run is None else label_value(f"{run.dag_id} {run.task_id} {run.run_id} {run.map_index}")


def run_digest(label: str) -> str:
    """Returns a digest of the label of a task and run: 8 hexadecimal digits."""
    return hashlib.sha256(label.encode()).hexdigest()[:8]


def flink_name(spec: JobSpec) -> str:
    """Returns the name of the job on Flink, which has no labels: also with the digest of task and run."""
    label = run_label(spec)
    return dataflow_name(spec) if label is None else f"{dataflow_name(spec)}-{run_digest(label)}"


def progress_prefix(spec: JobSpec) -> str:
    """Returns the beginning of the addresses of the counts that the workers of a job elsewhere write."""
    return f"{spec.paths.progress_uri}{spec_digest(spec)}-"


def labels(spec: JobSpec) -> dict[str, str]:
    """Returns the labels of the job on Dataflow."""
    own = getattr(spec.runner, "labels", {})
    endpoint = endpoint_of_model(spec.model)
    endpoint_labels = {} if endpoint is None else {ENDPOINT_LABEL: endpoint}
    deployment_labels = {DEPLOYMENT_LABEL: spec.deployment} if spec.deployment else {}
    identity_labels = {JOB_LABEL: job_identity(spec), SPEC_LABEL: spec_digest(spec)}
    label = run_label(spec)
    run_labels = {} if label is None else {RUN_LABEL: label}
    return {**own, **identity_labels, **deployment_labels, **endpoint_labels, **run_labels}


def with_billing_labels(spec: JobSpec, dag_id: str, task_id: str) -> JobSpec:
    """Returns the spec with the labels of its Dag and task, where the provider takes labels.

    There is none of the run: more than 1,000 values of a key, ever, and Google may drop the key without notice.
    Source: docs.cloud.google.com/gemini-enterprise-agent-platform/models/capabilities/add-labels-to-api-calls
    """
    model = spec.model
    if not isinstance(model, GeminiModel) or not model.project or spec.embedding is not None:
        return spec
    labels = {DAG_LABEL: label_value(dag_id), TASK_LABEL: label_value(task_id), **model.labels}
    return spec.model_copy(update={"model": model.model_copy(update={"labels": labels})})


def display_name_prefix(spec: JobSpec) -> str:
    """Returns the beginning of the display names of one job: batch-inference jobs, and cached contents."""
    own = _digest(f"{spec.deployment}\n{spec.name}\n{spec.paths.home_uri}", 12)
    return f"{deployment_prefix(spec.deployment)}{own}-"


def deployment_prefix(deployment: str) -> str:
    """Returns the beginning of the display names of all jobs of an Airflow.

    Args:
        deployment: Name of the Airflow; that of a job which no Airflow started is empty.
    """
    return f"llmbeam-{_digest(deployment, 8)}-"


def _digest(text: str, characters: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:characters]
