"""Airflow hook of Vertex AI Experiments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from airflow_provider_llmbeam.exceptions import CloudNotFoundError, JobSpecError
from airflow_provider_llmbeam.hooks.google.base import REQUEST_SECONDS, RegionalHook

#: Region of an experiment that is given by its name alone, as in Google's client (`aiplatform.init`).
DEFAULT_LOCATION = "us-central1"
_STORE = "metadataStores/default"
#: 60 characters, as the id of a run begins with that of its experiment, and has at most 128.
_ID = r"[a-z0-9][a-z0-9-]{0,59}"
_NAME = re.compile(
    rf"(projects/(?P<project>[^/]+)/locations/(?P<location>[a-z0-9-]+)/{_STORE}/contexts/)?(?P<id>{_ID})"
)


def read_experiment(name: str) -> tuple[str | None, str, str]:
    """Returns project, which may be `None`, region and id of an experiment.

    Raises:
        JobSpecError: The name is invalid.
    """
    if (found := _NAME.fullmatch(name)) is None:
        raise JobSpecError(
            "`experiment`: must be 1 to 60 of a-z, 0-9 and -, e.g. 'review-moods', or a resource name, "
            f"'projects/…/locations/…/{_STORE}/contexts/review-moods'; got {name!r}."
        )
    return found["project"], found["location"] or DEFAULT_LOCATION, found["id"]


class ExperimentsHook(RegionalHook):
    """Records runs in Vertex AI Experiments; the arguments are those of `RegionalHook`.

    An experiment and its runs are contexts in the default metadata store, with the schemas and the fields that
    Google's client writes and the console reads. Source: `google.cloud.aiplatform.metadata` 1.165, whose
    `start_run` refuses the run of an earlier try, or needs to know that there was one.
    """

    service = "aiplatform.googleapis.com"
    role = "roles/aiplatform.user"

    def log_run(
        self, experiment: str, run: str, params: Mapping[str, str | float], metrics: Mapping[str, float]
    ) -> str:
        """Writes the parameters and metrics of a run, and makes what is missing; a second call changes nothing.

        Args:
            experiment: Id of the experiment.
            run: Name of the run, of a-z, 0-9 and -.
            params: Parameters.
            metrics: Metrics.

        Returns:
            Resource name of the run.

        Raises:
            CloudError: A request failed.
        """
        try:
            parent = self._create_experiment(experiment)
        except CloudNotFoundError:  # nobody has used experiments in this region
            self._create_store()
            parent = self._create_experiment(experiment)
        name = f"{self.parent}/{_STORE}/contexts/{experiment}-{run}"
        context = {
            "name": name,
            "display_name": run,
            "schema_title": "system.ExperimentRun",
            "schema_version": "0.0.1",
            "metadata": {"_params": dict(params), "_metrics": dict(metrics), "_state": "COMPLETE"},
        }
        client = self._metadata_client()
        with self._translate_errors(f"write {name!r}", missing=f"experiment {experiment!r}"):
            client.update_context({"context": context, "allow_missing": True}, **self._options())
            client.add_context_children(context=parent, child_contexts=[name], **self._options())
        return name

    def _create_experiment(self, experiment: str) -> str:
        context = {
            "display_name": experiment,
            "schema_title": "system.Experiment",
            "schema_version": "0.0.1",
            "metadata": {"experiment_deleted": False},
        }
        request = {"parent": f"{self.parent}/{_STORE}", "context": context, "context_id": experiment}
        with self._creates(f"experiment {experiment!r}", missing="the default metadata store"):
            self._metadata_client().create_context(request, **self._options())
        return f"{self.parent}/{_STORE}/contexts/{experiment}"

    def _create_store(self) -> None:
        request = {"parent": self.parent, "metadata_store": {}, "metadata_store_id": "default"}
        with self._creates("the default metadata store", missing=f"region {self.location!r}"):
            self._metadata_client().create_metadata_store(request, **self._options()).result(REQUEST_SECONDS)

    @contextmanager
    def _creates(self, resource: str, *, missing: str) -> Iterator[None]:
        """Accepts that a resource is there already, of an earlier try or of another task."""
        from google.api_core.exceptions import AlreadyExists, Conflict

        with self._translate_errors(f"create {resource}", missing=missing), suppress(AlreadyExists, Conflict):
            yield

    def _metadata_client(self) -> Any:
        from google.cloud.aiplatform_v1 import MetadataServiceClient

        return self._rest_client(MetadataServiceClient, f"{self.location}-aiplatform.googleapis.com")
