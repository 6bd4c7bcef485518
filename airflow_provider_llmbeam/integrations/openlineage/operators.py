"""The methods by which the OpenLineage provider asks a task for its lineage."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.integrations.openlineage.facts import (
    JobFacts,
    estimate_values,
    inference_values,
    usage_values,
)

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

log = logging.getLogger(__name__)


class HasLineage:
    """Base of operators that report their lineage.

    The OpenLineage provider calls the methods in a fork of the task's process after `execute`, and only if it is
    installed and has a transport; nothing of OpenLineage is imported before.
    """

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any] | None:
        """Returns datasets and facets of a task that succeeded or was skipped; `None` if that fails."""
        return _or_none(lambda: self._lineage(task_instance))

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> OperatorLineage[Any, Any] | None:
        """Returns what is known of a task that failed; `None` if that fails."""
        return _or_none(lambda: self._lineage(task_instance))

    def _lineage(self, task_instance: Any) -> OperatorLineage[Any, Any] | None:
        """Returns the lineage; by default none. It may raise any error."""
        return None


def job_lineage(facts: JobFacts) -> OperatorLineage[Any, Any]:
    """Returns the datasets and run facets of a job.

    Raises:
        ImportError: The OpenLineage provider is not installed.
    """
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_provider_llmbeam.integrations.openlineage import facets
    from airflow_provider_llmbeam.integrations.openlineage.datasets import inputs_of, outputs_of

    found: dict[str, Any] = {"llmbeam_inference": facets.LLMInferenceRunFacet(**inference_values(facts.spec))}
    if facts.manifest is not None:
        found["llmbeam_usage"] = facets.LLMUsageRunFacet(**usage_values(facts.manifest))
    if facts.estimate is not None:
        found["llmbeam_estimate"] = facets.LLMEstimateRunFacet(**estimate_values(facts.estimate))
    return OperatorLineage(inputs=inputs_of(facts), outputs=outputs_of(facts), run_facets=found)


def endpoint_lineage(name: str, endpoint: Any) -> OperatorLineage[Any, Any]:
    """Returns the run facet of an endpoint, which is no dataset.

    Args:
        name: Name of the endpoint.
        endpoint: Spec of the endpoint.

    Raises:
        ImportError: The OpenLineage provider is not installed.
    """
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_provider_llmbeam.integrations.openlineage.facets import LLMEndpointRunFacet

    facet = LLMEndpointRunFacet(
        name=name, endpointType=endpoint.type, modelName=endpoint.model, locations=list(endpoint.locations)
    )
    return OperatorLineage(run_facets={"llmbeam_endpoint": facet})


def sweep_lineage(manifest: dict[str, Any] | None) -> OperatorLineage[Any, Any] | None:
    """Returns the run facet of a sweep: numbers, as the names are in the XCom; `None` if it has not ended.

    Raises:
        ImportError: The OpenLineage provider is not installed.
    """
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_provider_llmbeam.integrations.openlineage.facets import LLMSweepRunFacet

    if manifest is None:
        return None
    counts = {name: len(value) for name, value in manifest.items() if isinstance(value, list)}
    return OperatorLineage(
        run_facets={"llmbeam_sweep": LLMSweepRunFacet(counts=counts, isDryRun=manifest["dry_run"])}
    )


def _or_none(lineage: Callable[[], OperatorLineage[Any, Any] | None]) -> OperatorLineage[Any, Any] | None:
    try:
        return lineage()
    except Exception as error:
        # The type alone: the message may quote a value of the spec.
        log.warning("The OpenLineage event has no datasets of this task: %s.", type(error).__name__)
        log.debug("The error:", exc_info=True)
        return None
