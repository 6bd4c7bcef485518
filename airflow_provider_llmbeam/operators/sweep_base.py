"""Base of the operators that sweep."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_llmbeam.exceptions import LLMBeamError
from airflow_provider_llmbeam.integrations.openlineage.operators import HasLineage, sweep_lineage
from airflow_provider_llmbeam.operators.errors import errors_of_airflow

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from airflow_provider_llmbeam.sweepers.sweeper import SweepManifest


class SweepOperator(HasLineage, BaseOperator):
    """Sweeps, and fails after the last removal if something may be left."""

    ui_color = "#fce8e6"
    _manifest: dict[str, Any] | None = None

    @abstractmethod
    def _sweep(self) -> SweepManifest: ...

    @abstractmethod
    def _error(self, message: str) -> LLMBeamError: ...

    def execute(self, context: Context) -> dict[str, Any]:
        """Sweeps, and returns the manifest."""
        with errors_of_airflow():
            manifest = self._sweep()
            self.log.info("%s", manifest)
            self._manifest = manifest.plain()
            if manifest.failed:
                raise self._error(
                    f"{len(manifest.cancelled)} cancelled, {len(manifest.deleted)} deleted, "
                    f"{len(manifest.failed)} not: {' '.join(manifest.failed)}"
                )
            return self._manifest

    def _lineage(self, task_instance: Any) -> OperatorLineage[Any, Any] | None:
        return sweep_lineage(self._manifest)
