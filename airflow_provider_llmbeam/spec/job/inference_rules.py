"""Rules on the inference of a job: what its model, its runner and its files must allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.base import NOT_SHOWN, FieldFaultError
from airflow_provider_llmbeam.spec.facts import TIER_LOCATION
from airflow_provider_llmbeam.spec.model import GeminiModel, Model, OpenAIModel, with_project
from airflow_provider_llmbeam.spec.model.price import price_of
from airflow_provider_llmbeam.spec.model.tier import FLEX_TIERS, PROVISIONED_TIERS
from airflow_provider_llmbeam.spec.runner import LocalRunner
from airflow_provider_llmbeam.spec.usage_tier import thresholds_of

if TYPE_CHECKING:
    from airflow_provider_llmbeam.spec.job import JobSpec


def inference_fault(spec: JobSpec, *, has_project: bool) -> FieldFaultError | None:
    """Returns why the inference of a job cannot work, or `None`.

    Args:
        spec: The job.
        has_project: Whether the model has a project, or an Airflow connection may provide one.
    """
    mode = spec.inference.mode
    if spec.inference.finish_by == "deadline":
        return FieldFaultError(
            "inference.finish_by",
            "must be a time or a duration here: only an operator of Airflow knows the deadline of its Dag",
            spec.inference.finish_by,
        )
    if spec.inference.service_tier != "standard" and (fault := _tier_fault(spec, has_project=has_project)):
        return fault
    if spec.limits.usage_tier is not None and (fault := _usage_tier_fault(spec, has_project=has_project)):
        return fault
    if mode == "online":
        return None
    return _model_fault(spec, mode) or _job_fault(spec, mode) or _deadline_fault(spec)


def labels_fault(spec: JobSpec, *, has_project: bool) -> FieldFaultError | None:
    """Returns why the requests of a job cannot have its labels, or `None`.

    Args:
        spec: The job.
        has_project: Whether the model has a project, or an Airflow connection may provide one.
    """
    if not isinstance(spec.model, GeminiModel) or not spec.model.labels:
        return None
    if spec.embedding is not None:
        reason = "to embed: Vertex AI takes labels with requests for texts alone"
    elif not has_project:
        reason = "without `model.project`: Vertex AI takes labels, the Gemini Developer API does not"
    else:
        return None
    return FieldFaultError("model.labels", f"must be left out {reason}", spec.model.labels, spec.model.project)


def has_batch_inference(spec: JobSpec) -> bool:
    """Returns whether the job can be run with `inference.mode` 'batch', as far as it is known."""
    model = spec.model
    if isinstance(model, OpenAIModel) and not model.is_openais and spec.inference.mode == "online":
        return False  # nobody has asked the server
    return not (_model_fault(spec, "batch") or _job_fault(spec, "batch"))


def check_batch_model(model: Model) -> None:
    """Refuses a model without batch inference.

    Raises:
        JobSpecError: Its provider has none.
    """
    if not model.api.has_batch:
        raise JobSpecError(
            f"`model`: must have batch inference; got {model.name!r} of type {model.type!r}, which has none here."
        )


def has_flex(spec: JobSpec) -> bool:
    """Returns whether the model of a job has the flex tier, for what the job sends."""
    return _flex_fault(spec) is None


def _tier_fault(spec: JobSpec, *, has_project: bool) -> FieldFaultError | None:
    inference = spec.inference
    if inference.service_tier in PROVISIONED_TIERS:
        is_on_vertex_ai = isinstance(spec.model, GeminiModel) and has_project
        if not is_on_vertex_ai or spec.embedding is not None:
            return FieldFaultError(
                "inference.service_tier",
                "must be another one here: Provisioned Throughput is for texts of Gemini models on Vertex AI",
                inference.service_tier,
                spec.model.name,
            )
        if inference.service_tier == "provisioned":
            return None
    if inference.service_tier not in FLEX_TIERS:
        return _priority_fault(spec)
    if (fault := _flex_fault(spec)) or inference.finish_by is None:
        return fault
    if inference.service_tier != "flex_then_standard":
        return FieldFaultError(
            "inference.service_tier",
            "must be 'flex_then_standard' with `inference.finish_by`: nobody promises when flex answers",
            inference.service_tier,
        )
    if inference.mode == "online" and not isinstance(spec.runner, LocalRunner):
        return FieldFaultError(
            "inference.finish_by",
            f"must be left out with service tier 'flex_then_standard' and a runner of type {spec.runner.type!r}: "
            "the task would have to send some prompts itself, to learn how long the rest takes",
            inference.finish_by,
        )
    return None


def _usage_tier_fault(spec: JobSpec, *, has_project: bool) -> FieldFaultError | None:
    model = with_project(spec.model) if has_project else spec.model
    if spec.embedding is None and thresholds_of(model):
        if spec.inference.service_tier == "standard":
            return None
        return FieldFaultError(
            "limits.usage_tier",
            "must be left out with another service tier than 'standard', whose thresholds it is about",
            spec.limits.usage_tier,
            spec.inference.service_tier,
        )
    return FieldFaultError(
        "limits.usage_tier",
        "must be left out here: Vertex AI has thresholds for texts of Gemini models from 2.0 on, in "
        f"{TIER_LOCATION!r} alone",
        spec.limits.usage_tier,
        spec.model.name,
    )


def _flex_fault(spec: JobSpec) -> FieldFaultError | None:
    if fault := _other_tier_fault(spec, "flex"):
        return fault
    if spec.generation.stream:
        return FieldFaultError(
            "inference.service_tier",
            "must be 'standard' with `generation.stream`: a flex answer may begin after 15 minutes",
            spec.inference.service_tier,
        )
    return None


def _priority_fault(spec: JobSpec) -> FieldFaultError | None:
    if fault := _other_tier_fault(spec, "priority"):
        return fault
    price = price_of(spec.model, spec.limits.price) if spec.limits.budget_field else None
    if price is not None and price.priority_ratio is None:
        return FieldFaultError(
            "limits.price",
            "this field is needed with `priority_ratio`, as `limits.budget_usd` is set and the price of "
            f"{spec.model.type} model {spec.model.name!r} at service tier 'priority' is not known, e.g. "
            "{'input_usd_per_million_tokens': 0.3, 'output_usd_per_million_tokens': 2.5, 'priority_ratio': 1.8}",
            NOT_SHOWN,
            spec.model.name,
        )
    return None


def _other_tier_fault(spec: JobSpec, tier: str) -> FieldFaultError | None:
    """Returns why the provider serves no request of a job at another tier than the standard one, or `None`."""
    model, asked = spec.model, spec.inference.service_tier
    if tier not in model.api.tiers or spec.embedding is not None:
        return FieldFaultError(
            "inference.service_tier",
            f"must be 'standard' here: only Gemini and OpenAI itself have the {tier} tier, and only for texts",
            asked,
            model.name,
        )
    if isinstance(model, GeminiModel) and model.project and model.location != "global":
        return FieldFaultError(
            "inference.service_tier",
            f"must be 'standard' with `model.location` {model.location!r}: Vertex AI has {tier} in 'global' "
            "alone, and answers at the standard price elsewhere",
            asked,
            model.location,
        )
    return None


def _model_fault(spec: JobSpec, mode: str) -> FieldFaultError | None:
    model = spec.model
    if model.api.has_batch:
        return None
    return FieldFaultError(
        "inference.mode",
        f"must be 'online' with a model of type {model.type!r}, which has no batch inference here",
        mode,
        model.name,
    )


def _job_fault(spec: JobSpec, mode: str) -> FieldFaultError | None:
    if spec.embedding is not None and isinstance(spec.model, GeminiModel) and spec.model.project:
        # Vertex AI has it, with other files for text-embedding-005 than for gemini-embedding-001, of which the
        # pages do not say where the length of a vector (the former) and the tokens (the latter) are; and it takes
        # off a fifth of the price, not half (zilliz.com/ai-faq, "What are the cost implications of Google
        # Embedding 2").
        return FieldFaultError(
            "inference.mode",
            "must be 'online' to embed with `model.project`: batch inference of embeddings is implemented for the "
            "Gemini Developer API and OpenAI, not for Vertex AI",
            mode,
            spec.model.project,
        )
    if spec.prompt.media:
        return FieldFaultError(
            "inference.mode", "must be 'online' with `prompt.media`: request files hold texts", mode
        )
    if not isinstance(spec.runner, LocalRunner):
        return FieldFaultError(
            "inference.mode",
            f"must be 'online' with a runner of type {spec.runner.type!r}: the task prepares the request files "
            "itself. Leave `runner` out; the work is then done by the provider",
            mode,
            spec.runner.type,
        )
    if spec.model.api.service == "Vertex AI" and not spec.paths.home_uri.startswith("gs://"):
        return FieldFaultError(
            "state_uri",
            "must start with gs://, or a files sink must: Vertex AI reads request files from Cloud Storage alone",
            spec.state_uri,
            spec.paths.home_uri,
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
