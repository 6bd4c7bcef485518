"""What the Dag file itself says of a task, and not what Airflow renders: it may name what is not configured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_llmbeam.hooks.configuration import configured_lists
from airflow_provider_llmbeam.spec.allowed import check_allowed
from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.model import model_problems, parse_model


class WrittenInDag:
    """Keeps the arguments of a task as its Dag file has them; a base of operators and sensors with a spec."""

    #: Values of the templated fields before they are rendered.
    _written: Mapping[str, Any] | None = None

    def render_template_fields(self, context: Any, jinja_env: Any = None) -> None:
        """Renders the templated fields; Airflow calls it."""
        self._keep_written()
        super().render_template_fields(context, jinja_env)  # type: ignore[misc]

    def _keep_written(self) -> None:
        self._written = {name: getattr(self, name) for name in self.template_fields}  # type: ignore[attr-defined]

    def _check_allowed(self, value: SpecModel | Mapping[str, SpecModel], within: str = "") -> None:
        """Checks what a spec names, see `check_allowed`.

        Args:
            value: The spec, whose fields are arguments of the task; or arguments.
            within: An argument that has fields of the spec, too.

        Raises:
            JobSpecError: The Dag file does not name it, and neither does the configuration.
        """
        written = self._read_written()
        inner = [each.get(within) for each in written if isinstance(each, Mapping)]
        check_allowed(value, configured_lists(), [*written, *inner])

    def _check_model(self, data: Any) -> None:
        """Checks the argument `model`; one that is no model is refused by what uses it."""
        if data is not None and not model_problems(data):
            self._check_allowed({"model": parse_model(data)})

    def _read_written(self) -> list[Any]:
        """Returns the arguments in the Dag file.

        Airflow makes the instances of a mapped task with XComs as arguments, and renders them without
        `render_template_fields` (3.3, `MappedOperator.render_template_fields`): the Dag has the task as written.
        """
        if self._written is not None:
            return [self._written]
        dag = self.get_dag()  # type: ignore[attr-defined]
        task = None if dag is None else dag.get_task(self.task_id)  # type: ignore[attr-defined]
        return [getattr(task, "partial_kwargs", None), getattr(getattr(task, "expand_input", None), "value", None)]
