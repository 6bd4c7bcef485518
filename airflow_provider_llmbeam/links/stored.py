"""Links whose URL a task has stored; Airflow would store an empty XCom for each of the others."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.types import TaskInstanceKey


class XComLink(BaseOperatorLink):
    """Link to the URL in the XCom `xcom_key`; the API server reads it without this package."""

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Returns the URL; empty if the task wrote none."""
        from airflow.sdk.execution_time.xcom import XCom

        return str(XCom.get_value(ti_key=ti_key, key=self.xcom_key) or "")


class StoresLinks:
    """Mixin of operators with links: when a task has ended, it has the links only whose URL it has stored.

    Airflow writes an XCom for each link of a task that has ended, also where it leads nowhere
    (`task_runner.finalize`, 3.1 to 3.3).
    """

    links: Sequence[XComLink] = ()
    _running_ti: Any = None
    _stored: tuple[XComLink, ...] = ()
    _is_resumed = False

    if TYPE_CHECKING:
        log: Any
        operator_extra_links: Collection[BaseOperatorLink]
    else:

        @property
        def operator_extra_links(self) -> tuple[XComLink, ...]:
            """The links of the operator, or, while its task runs, those with a URL."""
            # Airflow also calls this getter with a mapped operator, which is no instance of this class.
            if not isinstance(self, StoresLinks):
                return tuple(self.operator_class.links)
            if self._running_ti is None:
                return tuple(self.links)
            if self._is_resumed:  # read once: `dag.test` asks again, when no XCom can be read
                stored = (link for link in self.links if link.get_link(self, ti_key=self._running_ti))
                self._stored, self._is_resumed = tuple(stored), False
            return self._stored  # not read, as Airflow logs an error for each XCom that is missing

    def store_link(self, context: Context, link: XComLink, url: str | None) -> None:
        """Stores the URL of a link, if it leads somewhere; a failure is logged, and does not end the task."""
        if url is None:
            return
        try:
            context["ti"].xcom_push(key=link.xcom_key, value=url)
        except Exception as error:  # noqa: BLE001 - of Airflow's API; the task may have a job or a GPU to wait for
            self.log.warning("The link %r could not be stored: %s", link.name, error)
        else:
            self._stored = (*self._stored, link)

    def pre_execute(self, context: Context) -> None:
        """Remembers the task instance, in the process that executes or resumes it."""
        self._running_ti = context["ti"]
        super().pre_execute(context)  # type: ignore[misc]

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resumes a task, whose links another process has stored."""
        self._is_resumed = True
        return super().resume_execution(next_method, next_kwargs, context)  # type: ignore[misc]
