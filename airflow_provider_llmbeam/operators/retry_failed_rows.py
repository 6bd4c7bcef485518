"""`RetryFailedRowsOperator`: sends the failed rows of an earlier job again, and merges their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.operators.identity import refuse_unknown_task
from airflow_provider_llmbeam.operators.literal import plain
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.spec.fields.failure_kind import FAILURE_KINDS, OF_NO_MODEL
from airflow_provider_llmbeam.spec.sink import sink_data

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from airflow_provider_llmbeam.spec.job import JobSpec
    from airflow_provider_llmbeam.spec.sink import Sink


_DEFAULT_KINDS = tuple(kind for kind in FAILURE_KINDS if kind not in OF_NO_MODEL)


class RetryFailedRowsOperator(RunInferenceOperator):
    """Sends the rows of a dead letter again, through another prompt or a larger model, and merges their answers.

    By their keys, answered rows join the output and leave the dead letter; the others stay in it. With a sink that
    has no files, the dead letter stays as it is, and the task has one of its own, with the rows that fail still:
    in another Dag run it would send the answered rows again, unless `cache` shares their answers. The failed rows
    of a source with `on_duplicate_key` 'allow' are sent again by a clear of its task: here their answers would
    replace those of other rows with their keys. A row whose request is the same as before, and was refused, is not
    paid for again. The report of the first task stays; that of this one is `report-retry.json` beside it, and has
    the figures of both. Without a row to send the task is skipped. `limits.max_dead_letter_ratio` is 1 by default:
    every row may fail again, unless each request is refused alike, as with a wrong key.

    Args:
        failed_task_id: Id of a task of the same run whose failed rows are sent, with its task groups, e.g.
            `night.answer`; in a mapped task group that of the same map index. Exactly one of this and
            `dead_letter_uri` is needed.
        dead_letter_uri: Dead letter of any earlier job, `dead_letter_uri` of its manifest.
        key: Columns that identify a row, as `source.key` of that job.
        failed_kinds: Kinds of failure whose rows are sent, e.g. `["truncated"]`; by default those that a model
            can answer: all but `unreadable_row`, `missing_key`, `duplicate_key`, `media_error`, `personal_data`
            and `no_turn`. With a corrected file, name `media_error`.
        sink: Sink of that job. Of a files sink, `on_existing` becomes 'merge'.
        kwargs: Arguments of `RunInferenceOperator`, without `source`. `prompt`, `model` and `generation` are those
            of the failed job, with what is to be changed.

    Templated:
        The fields of `RunInferenceOperator`; `failed_task_id` and `dead_letter_uri` are part of `source`.

    XCom:
        The manifest, as of `RunInferenceOperator`.

    Raises:
        JobSpecError: A literal argument is invalid, or a `conversation` is given; raised when the Dag is parsed.
        AirflowFailException: `failed_task_id` has left no dead letter in this run.
        AirflowSkipException: No row failed in one of these ways.
    """

    def __init__(
        self,
        *,
        sink: Sink | Mapping[str, Any] | XComArg,
        key: str | Sequence[str],
        failed_task_id: str | None = None,
        dead_letter_uri: str | None = None,
        failed_kinds: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        if (failed_task_id is None) == (dead_letter_uri is None) or "source" in kwargs:
            given = {"failed_task_id": failed_task_id, "dead_letter_uri": dead_letter_uri}
            raise JobSpecError(
                f"Task {kwargs.get('task_id')!r}: one of `failed_task_id` and `dead_letter_uri` is needed, and "
                f"no `source`, which is the dead letter; got {given}."
            )
        if kwargs.get("conversation") is not None:
            raise JobSpecError(
                f"Task {kwargs.get('task_id')!r}: `conversation`: the history belongs to the task that failed, "
                "and this one would send the rows without it; clear that task instead, which sends no other rows."
            )
        # Without `map_indexes` Airflow returns a list of all instances of a mapped task.
        manifests = f"ti.xcom_pull(task_ids={failed_task_id!r}, map_indexes=[ti.map_index, -1])"
        found = f"({manifests} | select | first | default({{}})).get('dead_letter_uri', '')"
        uri = dead_letter_uri or f"{{{{ {found} }}}}"
        source = {
            "uri": uri,
            "format": "jsonl",
            "key": key,
            "on_empty": "skip",
            "failed_kinds": tuple(failed_kinds) or _DEFAULT_KINDS,
        }
        self.failed_task_id = failed_task_id
        kwargs["limits"] = _may_fail_again(plain(kwargs.get("limits")))
        super().__init__(source=source, sink=_merge_by_key(plain(sink)), **kwargs)

    def _job(self, context: Context) -> tuple[JobSpec, dict[str, str]]:
        if self.failed_task_id is not None and not self.source["uri"]:
            refuse_unknown_task("failed_task_id", self.failed_task_id, self.get_dag())
            raise JobSpecError(
                f"`failed_task_id`: task {self.failed_task_id!r} has left no dead letter in this run. Expected a "
                "`RunInferenceOperator` that has succeeded before this task, and, if it is mapped, in the same "
                "mapped task group."
            )
        return super()._job(context)


def _may_fail_again(limits: Any) -> Any:
    """Returns limits with which every row may fail again, unless they say otherwise."""
    return {"max_dead_letter_ratio": 1, **(limits or {})} if isinstance(limits, Mapping | None) else limits


def _merge_by_key(sink: Any) -> Any:
    """Returns a sink that keeps the answers of other keys; all but files do."""
    found = sink_data(sink)
    is_files = isinstance(found, Mapping) and found.get("type") == "files"
    return {**found, "on_existing": "merge"} if is_files else sink
