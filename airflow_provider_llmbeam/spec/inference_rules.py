"""Rules on the inference of a job: what its model, its runner and its files must allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_llmbeam.spec.base import FieldFaultError
from airflow_provider_llmbeam.spec.model import GeminiModel, OpenAIModel
from airflow_provider_llmbeam.spec.model.media import is_openai
from airflow_provider_llmbeam.spec.runner import DirectRunner

if TYPE_CHECKING:
    from airflow_provider_llmbeam.spec.job import JobSpec


def inference_fault(spec: JobSpec) -> FieldFaultError | None:
    """Returns why the inference of a job cannot work, or `None`."""
    mode = spec.inference.mode
    if mode == "online":
        return None
    return _model_fault(spec, mode) or _job_fault(spec, mode) or _deadline_fault(spec)


def has_batch_inference(spec: JobSpec) -> bool:
    """Returns whether the job can be run with `inference.mode` 'batch'."""
    return not (_model_fault(spec, "batch") or _job_fault(spec, "batch"))


def _model_fault(spec: JobSpec, mode: str) -> FieldFaultError | None:
    model = spec.model
    if isinstance(model, GeminiModel) or (isinstance(model, OpenAIModel) and is_openai(model.base_url)):
        return None
    return FieldFaultError(
        "inference.mode",
        f"must be 'online' with a model of type {model.type!r} at an address of its own: only Gemini and OpenAI "
        "itself have batch inference",
        mode,
        model.name,
    )


def _job_fault(spec: JobSpec, mode: str) -> FieldFaultError | None:
    if spec.embedding is not None:
        return FieldFaultError(
            "inference.mode", "must be 'online' to embed: batch inference is for generated texts", mode
        )
    if spec.prompt.media:
        return FieldFaultError(
            "inference.mode", "must be 'online' with `prompt.media`: request files hold texts", mode
        )
    if not isinstance(spec.runner, DirectRunner):
        return FieldFaultError(
            "inference.mode",
            f"must be 'online' with a runner of type {spec.runner.type!r}: the task prepares the request files "
            "itself. Leave `runner` out; the work is then done by the provider",
            mode,
            spec.runner.type,
        )
    if isinstance(spec.model, GeminiModel) and spec.model.project and not spec.home_uri.startswith("gs://"):
        return FieldFaultError(
            "state_uri",
            "must start with gs://, or a files sink must: Vertex AI reads request files from Cloud Storage alone",
            spec.state_uri,
            spec.home_uri,
        )
    return None


def _deadline_fault(spec: JobSpec) -> FieldFaultError | None:
    if spec.inference.mode == "auto" and spec.inference.finish_by is None:
        return FieldFaultError(
            "inference.finish_by",
            "this field is needed with mode 'auto': the time by which the answers are needed, e.g. "
            "'{{ data_interval_end.add(hours=6) }}', or a duration from the start of the run, e.g. 'PT6H'",
            None,
        )
    return None
