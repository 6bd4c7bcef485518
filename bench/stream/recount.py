"""The windows of a stream, counted again from its answers and dead letters. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_provider_llmbeam.pipeline.stream.windows import Window, begin_of_window, decode_increment, merge

#: What can be counted again.
_COUNTED = ("answers", "dead_letter", "input_tokens", "output_tokens")


def count_again(answers: Iterable[Any], dead_letters: Iterable[Any], window_seconds: int) -> dict[int, Window]:
    """Returns the windows of the records of Kafka, by their timestamps."""
    found: dict[int, Window] = {}

    def window(record: Any) -> Window:
        return found.setdefault(begin_of_window(record.timestamp()[1], window_seconds), Window())

    for record in answers:
        answer, own = json.loads(record.value()), window(record)
        own.answers += 1
        if answer["llmbeam_origin"] != "duplicate":
            own.input_tokens += answer["llmbeam_input_tokens"]
            own.output_tokens += answer["llmbeam_output_tokens"]
    for record in dead_letters:
        window(record).dead_letter[json.loads(record.value())["llmbeam_error"]["kind"]] += 1
    return found


def sum_increments(records: Iterable[Any]) -> dict[int, Window]:
    """Returns the windows that the records of the topic of metrics add up to.

    Raises:
        ValueError: Two records have the same key.
    """
    increments, keys = [], set[bytes]()
    for record in records:
        if record.key() in keys:
            raise ValueError(f"{record.key()!r} is the key of two increments")
        keys.add(record.key())
        words, increment = decode_increment(record.value())
        increments.append({words["window"]: increment})
    return merge(increments)


def find_differences(counted: Mapping[int, Window], summed: Mapping[int, Window]) -> list[str]:
    """Returns in what the windows that were counted again differ from the sums, and how."""
    return [
        f"{begin} {name}: counted {ours}, summed {theirs}"
        for begin in sorted({*counted, *summed})
        for name in _COUNTED
        if (ours := getattr(counted.get(begin, Window()), name))
        != (theirs := getattr(summed.get(begin, Window()), name))
    ]
