"""The files sink: moves answers to a directory by renames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_provider_llmbeam.exceptions import RowsLostError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.sinks.staged import with_equal_types
from airflow_provider_llmbeam.spec.sink import FilesSink


def publish(sink: FilesSink, staged: Mapping[int, str], replaced: Iterable[str] | None = None) -> list[str]:
    """Moves the staged files of all shards to their final names, replacing those of an earlier run.

    Args:
        sink: The sink.
        staged: Address of the file of each shard.
        replaced: Addresses of the files of an earlier run. `None`: all answers in the sink.

    Returns:
        The addresses of the answers.
    """
    answers = {
        uri: f"{sink.uri}answers-{shard:05}-of-{sink.shards:05}.{sink.format}"
        for shard, uri in sorted(staged.items())
    }
    earlier = storage.match(f"{sink.uri}answers-*") if replaced is None else replaced
    outdated = {*earlier} - {*answers.values()}
    move_in(with_equal_types(answers) if sink.format == "parquet" else answers)
    storage.delete(outdated)
    return list(answers.values())


def move_in(files: Mapping[str, str]) -> None:
    """Renames staged files to their final names; a file that an earlier attempt has moved is skipped."""
    storage.rename({staged: final for staged, final in files.items() if storage.exists(staged)})
    if missing := [final for final in files.values() if not storage.exists(final)]:
        raise RowsLostError(f"{missing[0]!r} was written and does not exist. A retry sends nothing to the model.")
