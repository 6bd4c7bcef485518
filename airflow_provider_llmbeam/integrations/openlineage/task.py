"""What a task knows of its job, and the methods by which the OpenLineage provider asks for it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.spec.job import JobSpec

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobFacts:
    """A job, as its task knows it.

    Attributes:
        spec: The job.
        postgres_dsns: Connection strings of PostgreSQL sinks, by the variable that a sink names; only host, port
            and database reach an event.
        manifest: What the job reported; `None` if it has not ended, or failed.
        writes: Whether the task writes answers; one that estimates a job does not.
    """

    spec: JobSpec
    postgres_dsns: Mapping[str, str] = field(default_factory=dict)
    manifest: Mapping[str, Any] | None = None
    writes: bool = True

    @property
    def has_outputs(self) -> bool:
        """Whether the task writes answers, or would have if it had not failed."""
        is_skipped = self.manifest is not None and self.manifest.get("skipped_because") is not None
        return self.writes and not is_skipped


class HasLineage:
    """Base of operators that report the lineage of a job.

    The OpenLineage provider calls the methods in a fork of the task's process after `execute`, and only if it is
    installed and has a transport; nothing of OpenLineage is imported before.
    """

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any] | None:
        """Returns datasets and facet of a task that succeeded or was skipped; `None` if that fails."""
        try:
            from airflow_provider_llmbeam.integrations.openlineage.event import job_lineage

            return job_lineage(self._job_facts(task_instance))
        except Exception as error:
            # The type alone: the message may quote a value of the spec.
            log.warning("The OpenLineage event has no datasets of this task: %s.", type(error).__name__)
            log.debug("The error:", exc_info=True)
            return None

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> OperatorLineage[Any, Any] | None:
        """Returns what is known of a task that failed; `None` if that fails."""
        return self.get_openlineage_facets_on_complete(task_instance)

    def _job_facts(self, task_instance: Any) -> JobFacts:
        """Returns what is known of the job. It may raise any error."""
        raise NotImplementedError
