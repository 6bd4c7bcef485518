"""Timestamps and windows of rows, which each row carries through steps that give their elements others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import apache_beam as beam
from apache_beam.ml.inference.base import PredictionResult
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from airflow_provider_llmbeam.pipeline.build import FanOut
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, FailedRow, RenderedRow

#: Column that carries the timestamp of a row, in microseconds, and its windows, `None` for the global one. A row
#: without timestamp has none, and no source has a column of this name.
PLACE = "\0place"


class Carry(beam.DoFn):
    """Adds its timestamp and its windows to the row of `(fingerprint, RenderedRow)`, in the global window.

    A row of several windows remains one element, and so one request: it would be repeated for each with
    `DoFn.WindowParam`, and is not with `DoFn.WindowedValueParam`.

    Args:
        is_global: Whether the rows are in the global window.
    """

    def __init__(self, is_global: bool) -> None:
        super().__init__()
        self._is_global = is_global

    def process(
        self,
        keyed: tuple[str, RenderedRow],
        place: Any = beam.DoFn.WindowedValueParam,
    ) -> Iterator[Any]:
        """Processes one row."""
        if self._is_global and place.timestamp_micros == MIN_TIMESTAMP.micros:
            yield keyed
            return
        fingerprint, (row, *prompt) = keyed
        carried = (place.timestamp_micros, None if self._is_global else tuple(place.windows))
        yield GlobalWindows.windowed_value(
            (fingerprint, ({**row, PLACE: carried}, *prompt)), timestamp=place.timestamp
        )


class BatchInPlace(beam.DoFn):
    """Batches the elements of a bundle in the global window, at the earliest timestamp of a batch.

    `BatchElements` gives a batch the end of time (2.77). On a runner that does not fuse steps, and before a
    `GroupByKey` on every runner, the watermark then passes the rows of a batch, which are late when they leave.

    Args:
        max_size: Maximum size of a batch of several elements.
        size_of: Returns the size of an element.
    """

    def __init__(self, max_size: int, size_of: Callable[[Any], int] = lambda _: 1) -> None:
        super().__init__()
        self._max_size = max_size
        self._size_of = size_of
        self._earliest: Timestamp = MAX_TIMESTAMP

    def start_bundle(self) -> None:
        """Begins the first batch."""
        self._begin()

    def process(self, element: Any, timestamp: Any = beam.DoFn.TimestampParam) -> Iterator[Any]:
        """Adds one element."""
        size = self._size_of(element)
        if self._batch and self._size + size > self._max_size:
            yield self._ended()
            self._begin()
        self._batch.append(element)
        self._size += size
        self._earliest = min(self._earliest, timestamp)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """Ends the last batch."""
        if self._batch:
            yield self._ended()

    def _begin(self) -> None:
        self._batch: list[Any] = []
        self._size = 0
        self._earliest = MAX_TIMESTAMP

    def _ended(self) -> WindowedValue:
        return GlobalWindows.windowed_value(self._batch, timestamp=self._earliest)


class FanOutInPlace(FanOut):
    """Gives the answer, or the failure, of a request to each of its rows, at its timestamp and in its windows."""

    def process(self, result: PredictionResult) -> Iterator[Any]:
        """Emits one element per row of a request."""
        for found in super().process(result):
            if isinstance(found, TaggedOutput):
                yield TaggedOutput(found.tag, in_place(found.value))
            else:
                yield in_place(found)


def in_place(element: AnsweredRow | FailedRow) -> WindowedValue:
    """Returns an element at the timestamp and in the windows of its row, with the row as read."""
    if PLACE not in element.row:
        return GlobalWindows.windowed_value(element)
    row = dict(element.row)
    micros, windows = row.pop(PLACE)
    placed = replace(element, row=row)
    if windows is None:
        return GlobalWindows.windowed_value(placed, timestamp=Timestamp(micros=micros))
    return WindowedValue(placed, Timestamp(micros=micros), windows)
