"""`@task.llmbeam`: a function that returns the rows of a job, or parts of its spec."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import (
    AirflowNotFoundException,
    BaseHook,
    DecoratedOperator,
    context_merge,
    determine_kwargs,
    task_decorator_factory,
)

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.operators.errors import errors_of_airflow
from airflow_provider_llmbeam.operators.literal import plain
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.spec.fields.text import from_text

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import TaskDecorator
    from airflow.sdk import Context

    from airflow_provider_llmbeam.spec.job import JobSpec

#: Limits on answers that are the value of an XCom, which is a value in Airflow's metadata database.
MAX_ANSWERS, MAX_BYTES = 1000, 2**20

_PARTS = frozenset(RunInferenceOperator.template_fields) - {"prompt_per_row"}


class _LLMBeamDecoratedOperator(DecoratedOperator, RunInferenceOperator):
    """Calls a function, and runs the job that it describes."""

    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *RunInferenceOperator.template_fields)
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        **RunInferenceOperator.template_fields_renderers,
    }
    custom_operator_name = "@task.llmbeam"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        key: str | Sequence[str] | None = None,
        source: Any = None,
        deferrable: bool = False,
        return_answers: bool = False,
        **kwargs: Any,
    ) -> None:
        name = f"@task.llmbeam of {python_callable.__name__!r}"
        if key is not None and source is not None:
            raise JobSpecError(f"{name}: `key` is that of rows that the function returns; `source` has its own.")
        if deferrable:
            raise JobSpecError(
                f"{name}: `deferrable` must be False: a task that resumes would call the function again, which "
                "may return other rows. Use `RunInferenceOperator` for a job that waits without a worker slot."
            )
        self.key = key
        self.return_answers = return_answers
        self._has_source = source is not None
        columns = [key] if isinstance(key, str) else [*(key or ("row",))]
        # The function is called in the task. A row that stands for its rows lets the rest be checked before.
        stand_in = {"type": "rows", "rows": [dict.fromkeys(columns, "")], "key": columns}
        super().__init__(
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=op_kwargs,
            source=stand_in if source is None else source,
            deferrable=False,
            **kwargs,
        )
        sink = from_text(self.sink)
        if return_answers and isinstance(sink, Mapping) and sink.get("type", "files") != "files":
            raise JobSpecError(f"{name}: `return_answers` needs a sink of type 'files'; got {sink.get('type')!r}.")

    def execute(self, context: Context) -> Any:
        """Calls the function, runs the job and waits for it."""
        with errors_of_airflow():
            self._take(self._call_function(context))
        manifest = RunInferenceOperator.execute(self, context)
        if not self.return_answers:
            return manifest
        context["ti"].xcom_push(key="manifest", value=manifest)
        return self._answers(manifest)

    def resolve_job(self, context: Context) -> tuple[JobSpec, dict[str, str], Any]:
        """Calls the function, and returns what the task asks of a job."""
        self._take(self._call_function(context))
        return super().resolve_job(context)

    def _call_function(self, context: Context) -> Any:
        context_merge(context, self.op_kwargs)
        kwargs = determine_kwargs(self.python_callable, self.op_args, context)
        return self.python_callable(*self.op_args, **kwargs)

    def _take(self, returned: Any) -> None:
        """Takes the rows, or the parts of the spec, that the function has returned."""
        name = self.python_callable.__name__
        returned = _rows_of(returned)
        if isinstance(returned, Mapping):
            if unknown := returned.keys() - _PARTS:
                raise JobSpecError(
                    f"{name!r} returned {', '.join(map(repr, sorted(unknown)))}, and these are no parts of a job; "
                    f"expected some of {', '.join(sorted(_PARTS))}."
                )
            if "source" not in returned and not self._has_source:
                raise JobSpecError(
                    f"{name!r} returned no 'source', and the decorator has none: give it to one of them."
                )
            for part, value in returned.items():
                setattr(self, part, plain(value))
        elif self.key is None:
            raise JobSpecError(
                f"{name!r} returned a {type(returned).__name__}; without `key` it returns a mapping of parts of "
                "the job, e.g. {'source': {...}}, and with it rows."
            )
        elif isinstance(returned, str) or not isinstance(returned, Iterable):
            raise JobSpecError(
                f"{name!r} returned a {type(returned).__name__}; expected rows: mappings with the key."
            )
        else:
            self.source = {"type": "rows", "rows": [*returned], "key": self.key}

    def _answers(self, manifest: Mapping[str, Any]) -> Any:
        """Returns the answers, or the directory with them if they are too many for an XCom."""
        from airflow.sdk import ObjectStoragePath

        from airflow_provider_llmbeam.hooks.storage import files_at

        uris, count = manifest["answers_uris"], manifest["rows"]["answered"]
        if count <= MAX_ANSWERS and uris[0].endswith(".jsonl"):
            texts = [files_at(uri, self.gcp_conn_id).read(uri) for uri in uris]
            if sum(len(text.encode()) for text in texts) <= MAX_BYTES:
                return [json.loads(line) for text in texts for line in text.split("\n") if line]
        self.log.info("%d answers are not returned as an XCom, but the path of their directory.", count)
        return ObjectStoragePath(uris[0].rpartition("/")[0], conn_id=self._conn_id(uris[0]))

    def _conn_id(self, uri: str) -> str | None:
        """Returns the connection with the credentials for a file; `None` stands for those of the machine."""
        if not uri.startswith("gs://"):
            return None
        try:
            BaseHook.get_connection(self.gcp_conn_id)
        except AirflowNotFoundException:
            return None  # the default connection, as in `GoogleHook`: a job with any other one has failed
        return self.gcp_conn_id


def _rows_of(returned: Any) -> Any:
    """Returns the rows of a table of pandas, Polars or Arrow; anything else that a function returns as it is."""
    for name, arguments in (("to_dicts", ()), ("to_pylist", ()), ("to_dict", ("records",))):
        if hasattr(returned, name):
            return getattr(returned, name)(*arguments)
    return returned


def llmbeam_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Makes a task of a function that returns the rows of a job, or parts of its spec: `@task.llmbeam`.

    The function is called in the task, before anything is sent, and again by a retry: equal rows are not paid for
    again. The task keeps its worker slot, as one that resumes would call the function once more.

    Args:
        python_callable: The function. It returns rows, which are mappings; or, without `key`, a mapping of
            arguments of `RunInferenceOperator` that are only known then, e.g. `source` and `prompt_variables`.
        kwargs: Arguments of `RunInferenceOperator`. Besides them `key`, the columns that identify a returned row;
            and `return_answers`, which makes a list of the answers the result of the task. More than 1,000 answers
            or 1 MiB of them, or answers in Parquet, are an `ObjectStoragePath` of their directory instead; the
            manifest is the XCom `manifest` then.

    Raises:
        JobSpecError: A literal argument is invalid; raised when the Dag is parsed.
    """
    return task_decorator_factory(
        python_callable=python_callable, decorated_operator_class=_LLMBeamDecoratedOperator, **kwargs
    )
