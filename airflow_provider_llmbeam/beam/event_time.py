"""Timestamps and windows of rows, which each row carries through steps that give their elements others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import apache_beam as beam
from apache_beam.ml.inference.base import PredictionResult
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp
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
