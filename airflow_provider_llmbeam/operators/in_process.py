"""Operators that send some prompts of a job from the worker, and write nothing to its sink."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.hooks.google.authentication import Place, google_credentials
from airflow_provider_llmbeam.jobs.process import JobProcess
from airflow_provider_llmbeam.operators.base import InferenceJobOperator
from airflow_provider_llmbeam.operators.identity import name_in_every_run
from airflow_provider_llmbeam.operators.literal import literal_problems, with_unrendered
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model import Model
from airflow_provider_llmbeam.spec.model.server import with_base_urls

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_llmbeam.spec.base import SpecModel
    from airflow_provider_llmbeam.spec.protocol.alert import Alert


class InProcessOperator(InferenceJobOperator):
    """Base of the operators that estimate, evaluate or compare a job, regardless of its `runner`.

    All runs of such a task have one job, and so share its journal.
    """

    _writes = False
    #: Class of `spec.evaluation` that it is asked for, and its fields among the arguments.
    _input = ""
    _own: tuple[str, ...] = ()

    def _run_step(
        self,
        name: str,
        given: SpecModel,
        job: tuple[JobSpec, Mapping[str, str]],
        context: Context,
        *,
        others: Sequence[Model] = (),
        places: Sequence[Place | None] = (),
        on_alert: Callable[[Alert], None] | None = None,
        on_page: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        """Returns what a step of a job has found, in a process with the credentials that it needs; shows its page.

        Args:
            name: Name of the step.
            given: What it is asked for.
            job: The job, and variables with its secrets.
            context: Context of the task.
            others: Models that it asks besides its own, whose keys it gets as well.
            places: What it reads and writes besides the places of the spec.
            on_alert: Called with each alert of a step that is resident.
            on_page: Called with its page, when it has changed.
        """
        spec, environment = job
        if self.impersonation_chain:
            self.log.warning(
                "This task reads and sends as the account of `gcp_conn_id` %r: `impersonation_chain` counts on "
                "Dataflow alone.",
                self.gcp_conn_id,
            )
        names = [name for model in others for name in model.api.secret_variables]
        keys = {name: os.environ[name] for name in names if name in os.environ}
        self._process = JobProcess(
            spec,
            {**keys, **environment},
            self.log,
            on_alert=on_alert,
            on_page=on_page,
            files_at=self._files_of(spec),
        )
        with google_credentials(spec, self.gcp_conn_id, others, places):
            found = self._process.run_step(name, given)
        self._show_page(self._process.page, context)
        return found

    def _own_job_name(self, ti: Any) -> str:
        return name_in_every_run(ti)

    def _input_data(self) -> dict[str, Any]:
        """Returns what it is asked for, as plain data."""
        data = {name: with_unrendered(getattr(self, name)) for name in self._own}
        return {name: value for name, value in data.items() if value is not None}

    def _parse_input(self, data: Mapping[str, Any]) -> Any:
        """Returns what it is asked for.

        Raises:
            JobSpecError: It is invalid, or names what is not allowed.
        """
        given = with_base_urls(self._input_class().parse(data), os.environ, self.log)
        self._check_allowed(given)
        return given

    def _input_class(self) -> type[SpecModel]:
        # Imported here: its classes take a tenth of the time to parse a Dag file, which need not use it.
        from airflow_provider_llmbeam.spec import evaluation

        found: type[SpecModel] = getattr(evaluation, self._input)
        return found

    def _refuse_problems(self, *never_rendered: str) -> None:
        """Refuses literal arguments that are not valid, when the Dag is parsed.

        Args:
            never_rendered: Fields that Airflow does not render.

        Raises:
            JobSpecError: Names them.
        """
        if problems := literal_problems(self._input_class(), self._input_data(), never_rendered):
            raise JobSpecError(f"Task {self.task_id!r}: {' '.join(map(str, problems))}")
