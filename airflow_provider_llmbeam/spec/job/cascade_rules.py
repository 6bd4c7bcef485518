"""Rules on the job of a cascade: what is implemented for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.spec.base import NOT_SHOWN, FieldFaultError
from airflow_provider_llmbeam.spec.distilled import DistilledStage
from airflow_provider_llmbeam.spec.source import KafkaSource, PubSubSource

if TYPE_CHECKING:
    from airflow_provider_llmbeam.spec.job import JobSpec


def cascade_fault(spec: JobSpec) -> FieldFaultError | None:
    """Returns why the cascade of a job is not implemented for its other parts, or `None`."""
    cascade = spec.cascade
    if cascade is None:
        return None
    moderation = spec.safety.moderation
    faults: tuple[tuple[bool, str, str, Any], ...] = (
        (
            isinstance(spec.source, KafkaSource | PubSubSource),
            "cascade",
            f"must be left out with a source of type {spec.source.type!r}, from which nothing can be drawn before",
            NOT_SHOWN,
        ),
        (
            bool(spec.prompt.media),
            "prompt.media",
            "must be left out with `cascade`: it is implemented for texts",
            NOT_SHOWN,
        ),
        (
            moderation is not None and "input" in moderation.on,
            "safety.moderation.on",
            "must be ['output'] with `cascade`: the sample is sent before a guard model judges prompts",
            None if moderation is None else moderation.on,
        ),
    )
    found = next((FieldFaultError(*fault) for is_met, *fault in faults if is_met), None)
    return found or _stage_fault(spec)


def _stage_fault(spec: JobSpec) -> FieldFaultError | None:
    for index, stage in enumerate(() if spec.cascade is None else spec.cascade.stages):
        if isinstance(stage, DistilledStage):
            continue
        own = stage.inference
        if own is not None and (own.mode != "online" or own.finish_by is not None):
            field = "mode" if own.mode != "online" else "finish_by"
            return FieldFaultError(
                f"cascade.stages.{index}.inference.{field}",
                "must be left out: the requests to a stage are sent online, as the next one waits for its answers",
                getattr(own, field),
            )
    return None
