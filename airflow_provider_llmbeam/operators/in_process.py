"""Operators that send some prompts of a job from the worker, and write nothing to its sink."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.google_cloud.credentials import google_credentials
from airflow_provider_llmbeam.operators.base import InferenceJobOperator
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model import Model, key_variables, model_data
from airflow_provider_llmbeam.tasks.literal import literal_problems
from airflow_provider_llmbeam.tasks.process import JobProcess

if TYPE_CHECKING:
    from airflow_provider_llmbeam.spec.base import SpecModel


class InProcessOperator(InferenceJobOperator):
    """Base of the operators that estimate, evaluate or compare a job, regardless of its `runner`."""

    _writes = False

    @contextmanager
    def _running(
        self,
        spec: JobSpec,
        environment: Mapping[str, str],
        others: Sequence[Model] = (),
    ) -> Iterator[JobProcess]:
        """Provides the process of a job, with the credentials that it needs.

        Args:
            spec: The job.
            environment: Variables with its secrets.
            others: Models that it asks besides its own, whose keys it gets as well.
        """
        if self.impersonation_chain:
            self.log.warning(
                "This task reads and sends as the account of `gcp_conn_id` %r: `impersonation_chain` counts on "
                "Dataflow alone.",
                self.gcp_conn_id,
            )
        names = [name for model in others for name in key_variables(model)]
        keys = {name: os.environ[name] for name in names if name in os.environ}
        self._process = JobProcess(spec, {**keys, **environment}, self.log)
        with google_credentials(spec, self.gcp_conn_id, others):
            yield self._process

    def _refuse_problems(self, kind: type[SpecModel], data: Mapping[str, Any], *never_rendered: str) -> None:
        """Refuses literal arguments that are not valid, when the Dag is parsed.

        Raises:
            JobSpecError: Names them.
        """
        if problems := literal_problems(kind, data, never_rendered):
            raise JobSpecError(f"Task {self.task_id!r}: {' '.join(map(str, problems))}")


class OtherModels:
    """Adds to models besides that of the job what their connections provide.

    Args:
        job_model: Model of the job, as plain data.
        llmbeam_conn_id: Its connection, which models of the same type use as well.
        environment: Variables with the secrets of the job; those of the other models are added.
    """

    def __init__(self, job_model: Any, llmbeam_conn_id: str, environment: dict[str, str]) -> None:
        found = model_data(job_model)
        self._type = found.get("type") if isinstance(found, Mapping) else None
        self._llmbeam_conn_id = llmbeam_conn_id
        self._environment = environment

    def completed(self, model: Any, conn_id: str | None = None) -> Any:
        """Returns a model, as plain data, with the fields of its connection.

        Args:
            model: The model.
            conn_id: Its connection. `None`: that of the job for a model of the same type, else none.

        Raises:
            JobSpecError: There is no such connection, or it has another key for the same variable.
        """
        from airflow_provider_llmbeam.hooks.llmbeam import LLMBeamHook

        data = model_data(model)
        if not isinstance(data, Mapping):
            return data
        conn_id = conn_id or (self._llmbeam_conn_id if data.get("type") == self._type else None)
        if conn_id is None:
            return data
        completed, secrets = LLMBeamHook(conn_id).complete_model({**data})
        for name, secret in secrets.items():
            if self._environment.setdefault(name, secret) != secret:
                raise JobSpecError(
                    f"Connection {conn_id!r} has another key than the model of the job, and one process reads one "
                    f"key from `{name}`. Nothing was sent or billed. Use the same key, or for an OpenAI model "
                    "another `api_key_env`."
                )
        return completed
