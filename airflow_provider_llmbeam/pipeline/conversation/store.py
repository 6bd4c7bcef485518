"""The history between runs: files of turns below `state_uri`, one for each run that has published new ones.

A turn is a line. A file never changes, and is deleted once all of its turns are older than `ttl_days`. It gets its
name at the publication of the answers, so a run that fails leaves none.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.io import fileio

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.conversation.turns import StoredTurn
from airflow_provider_llmbeam.pipeline.sinks.files import move_in
from airflow_provider_llmbeam.spec.identity import identity
from airflow_provider_llmbeam.spec.job import JobSpec

_log = logging.getLogger("llmbeam")

_DAY_SECONDS = 86_400.0
#: Time for which a file stays after its last turn has become too old, in seconds: other runs may still read it.
_GRACE_SECONDS = _DAY_SECONDS
_TYPES: tuple[Any, ...] = (str, list, str, str, str, (int, float), (int, float), dict)


def history_directory(spec: JobSpec) -> str:
    """Returns the directory of the history, which all runs of a task share; ends in `/`."""
    return f"{spec.state_uri}conversations/{identity(spec.owner or spec.name, spec.deployment)}/"


def encode_turn(conversation: str, turn: StoredTurn) -> bytes:
    """Encodes a turn as one line."""
    text = json.dumps({"conversation": conversation, **turn._asdict()}, ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass") + b"\n"


def decode_turn(line: bytes) -> tuple[str, StoredTurn]:
    """Decodes a line.

    Returns:
        The name of the conversation, and the turn.

    Raises:
        ValueError: The line is not a turn.
    """
    try:
        fields: Any = json.loads(line.decode("utf-8", "surrogatepass"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(fields, dict) or fields.keys() != {"conversation", *StoredTurn._fields}:
        raise ValueError("it has other fields than a turn")
    conversation = fields.pop("conversation")
    values = [fields[name] for name in StoredTurn._fields]
    are_valid = all(isinstance(value, kind) for value, kind in zip(values, _TYPES, strict=True))
    scalars = [*fields["values"].values(), conversation] if are_valid else []
    if not are_valid or not all(isinstance(value, str) for value in scalars):
        raise ValueError("it has a field of another type than a turn")
    if not all(isinstance(value, int | float | str) for value in fields["position"]):
        raise ValueError("its position is none")
    return conversation, StoredTurn(**{**fields, "position": tuple(fields["position"])})


def read_turns(uri: str) -> Iterator[tuple[str, StoredTurn]]:
    """Reads a file; lines that are no turns are passed over with one warning."""
    passed_over, first = 0, ""
    with storage.open_buffered(uri) as file:
        for line in file:
            try:
                yield decode_turn(line)
            except ValueError as error:
                passed_over += 1
                first = first or str(error)
    if passed_over:
        _log.warning("History %r: %d lines are no turns and were passed over: %s", uri, passed_over, first)


def read_history(root: beam.Pipeline, spec: JobSpec, since: float) -> beam.PCollection:
    """Reads the history in the graph, as `(conversation, StoredTurn as a tuple)`; it may be empty.

    Args:
        root: The pipeline.
        spec: The job.
        since: Unix time; older turns are passed over.
    """
    return (
        root
        | "HistoryPattern" >> beam.Create([f"{history_directory(spec)}*.jsonl"])
        | "MatchHistory" >> fileio.MatchAll(fileio.EmptyMatchTreatment.ALLOW)
        | "HistoryTurns" >> beam.FlatMap(lambda metadata: _turns_since(metadata.path, since))
    )


def _turns_since(uri: str, since: float) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for conversation, turn in read_turns(uri):
        if turn.answered_at >= since:
            yield conversation, tuple(turn)


def oldest_turn_at(spec: JobSpec, ttl_days: float, started_at: float) -> float:
    """Returns the Unix time before which turns are too old, the same for all attempts of a run.

    A turn that is in the history of one attempt, and not in that of the next one, would change the prompts of all
    later turns, which were then paid for twice.

    Raises:
        JobSpecError: The file with the time of the first attempt was changed.
    """
    uri = spec.paths.first_attempt_uri
    if not storage.exists(uri):
        storage.replace(uri, json.dumps({"started_at": started_at}).encode())
        return started_at - ttl_days * _DAY_SECONDS
    try:
        first = float(json.loads(storage.read(uri))["started_at"])
    except (ValueError, TypeError, LookupError):
        raise JobSpecError(
            f"{uri!r} holds the time of the first attempt of this run, and cannot be read as such: delete it."
        ) from None
    return first - ttl_days * _DAY_SECONDS


class WriteHistory(beam.PTransform):
    """Writes lines to one file that is not part of the history yet, and outputs its address."""

    def __init__(self, spec: JobSpec) -> None:
        super().__init__()
        self._directory = spec.paths.new_turns_uri

    def expand(self, lines: beam.PCollection) -> beam.PCollection:
        """Brings all lines together."""
        return (
            lines
            | "AsOne" >> beam.Map(lambda line: (None, line))
            | "AllTurns" >> beam.GroupByKey()
            | "WriteTurns" >> beam.MapTuple(lambda _, every: _written(self._directory, every))
        )


def _written(directory: str, lines: Iterable[bytes]) -> str:
    uri = f"{directory}{int(time.time()):010d}-{uuid.uuid4().hex}.jsonl"
    with storage.create(uri, is_private=True) as file:
        file.writelines(lines)
    return uri


def publish_history(spec: JobSpec, ttl_days: float, written: Iterable[str], now: float) -> None:
    """Makes the turns of a run part of the history, and deletes the files that have only old ones.

    Args:
        spec: The job.
        ttl_days: See `spec.Conversation`.
        written: Files of this run, if it has new turns.
        now: Unix time.
    """
    directory = history_directory(spec)
    storage.make_private(directory)
    move_in({uri: f"{directory}{uri.rpartition('/')[2]}" for uri in written})
    oldest = now - ttl_days * _DAY_SECONDS - _GRACE_SECONDS
    storage.delete([uri for uri in storage.match(f"{directory}*.jsonl") if _written_at(uri, now) < oldest])
    storage.delete([*storage.match(f"{spec.paths.new_turns_uri}*"), *storage.match(spec.paths.first_attempt_uri)])


def _written_at(uri: str, unknown: float) -> float:
    digits = uri.rpartition("/")[2].partition("-")[0]
    return float(digits) if digits.isdecimal() else unknown
