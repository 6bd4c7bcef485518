"""A transform that gathers elements of similar length into batches, in state that outlives a bundle."""

from __future__ import annotations

import math
import time
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Literal, TypeVar, get_args

import apache_beam as beam
from apache_beam import typehints
from apache_beam.coders import BytesCoder, Coder, TupleCoder, VarIntCoder, registry
from apache_beam.metrics import Metrics
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.protocol.counts import NAMESPACE

ElementT = TypeVar("ElementT")
#: `(length bucket, shard)`.
BatchKey = tuple[int, int]
#: Size of an element, and the element as bytes.
SizedElement = tuple[int, bytes]
#: What completed a batch: `max_batch_size`, `max_batch_weight`, `max_delay_seconds`, or the end of the window.
FlushCause = Literal["size", "weight", "delay", "window_end"]

_SIZE = Metrics.distribution(NAMESPACE, "batch_size")
_WEIGHT = Metrics.distribution(NAMESPACE, "batch_weight")
_PADDING = Metrics.distribution(NAMESPACE, "batch_padding_percent")
_BATCHES = {cause: Metrics.counter(NAMESPACE, f"batches_by_{cause}") for cause in get_args(FlushCause)}

_ELEMENTS = BagStateSpec("elements", TupleCoder((VarIntCoder(), BytesCoder())))
#: Number of the elements, the sum of their sizes, and their latest timestamp, in microseconds.
_HELD = ReadModifyWriteStateSpec("held", TupleCoder((VarIntCoder(), VarIntCoder(), VarIntCoder())))
_NOTHING = (0, 0, MIN_TIMESTAMP.micros)
_DELAY = TimerSpec("delay", TimeDomain.REAL_TIME)
_WINDOW_END = TimerSpec("window_end", TimeDomain.WATERMARK)


def utf8_size(text: Any) -> int:
    """Returns the number of bytes of a text in UTF-8.

    Raises:
        TypeError: The element is no text.
    """
    if not isinstance(text, str):
        raise TypeError(
            "`size_of`: elements that are no texts need a function that returns their size; got an element of "
            f"type {type(text).__name__!r}."
        )
    return len(text.encode("utf-8", "surrogatepass"))


class StatefulLengthBatching(beam.PTransform, Generic[ElementT]):
    """Gathers elements of similar length into batches, also across the bundles of an unbounded collection.

    A batch is a list of elements of one window, one length bucket and one shard. It is complete, and leaves the
    transform, when it has `max_batch_size` elements, when a further element would exceed `max_batch_weight`, when
    its first element has waited for `max_delay_seconds`, or when the watermark passes the end of its window.

    What the transform holds is in the state of the runner alone: it delivers each element once only where the
    runner does. A prototype with 500 to 1,500 elements lost, repeated or held back some of them on Beam's Prism
    runner, and on Flink with a job server of other versions than Beam's. No job of this package uses it; a bounded
    collection is better batched by `beam.BatchElements`, which holds nothing beyond a bundle.

    Counters are in the namespace `llmbeam`: the distributions `batch_size`, `batch_weight` and
    `batch_padding_percent` (the share of a batch that is padding if each element is as long as the longest), and
    `batches_by_size`, `batches_by_weight`, `batches_by_delay` and `batches_by_window_end`.

    Args:
        boundaries: Boundaries of the length buckets, ascending and lower-inclusive: `(128, 512)` gives [0, 128),
            [128, 512), [512, ∞).
        max_batch_size: Maximum number of elements of a batch.
        max_batch_weight: Maximum sum of their sizes, which bounds the state of a key, too. A larger element is a
            batch of its own. `None` for no limit.
        max_delay_seconds: Longest time for which an element waits for others, in seconds of processing time.
        size_of: Returns the size of an element, in bytes or in another unit, e.g. tokens, which is then that of
            `boundaries` and `max_batch_weight`. The default is the number of bytes of a text in UTF-8. An
            exception fails the bundle, which most runners repeat without an end in a stream.
        shards: Number of keys per length bucket. A runner processes the elements of one key one after the other.
        clock: Unix time, in seconds; the one by which the runner fires timers.

    Raises:
        JobSpecError: An argument is out of range, or of a wrong type, or the windows of the collection are merged,
            as sessions are.
    """

    def __init__(
        self,
        boundaries: Sequence[int],
        *,
        max_batch_size: int,
        max_delay_seconds: float,
        max_batch_weight: int | None = None,
        size_of: Callable[[ElementT], int] = utf8_size,
        shards: int = 1,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        limits = {
            "max_batch_size": max_batch_size,
            "max_delay_seconds": max_delay_seconds,
            "max_batch_weight": max_batch_weight,
            "shards": shards,
        }
        for name, value in limits.items():
            if value is None and name == "max_batch_weight":
                continue
            if not isinstance(value, int | float) or not 0 < value < math.inf:
                raise JobSpecError(f"`{name}`: must be a number above 0; got {value!r}.")
            if name != "max_delay_seconds" and type(value) is not int:
                raise JobSpecError(f"`{name}`: must be a whole number; got {value!r}.")
        for name, function in (("size_of", size_of), ("clock", clock)):
            if not callable(function):
                raise JobSpecError(f"`{name}`: must be a function; got {function!r}.")
        sizes = list(boundaries) if isinstance(boundaries, Sequence) else [0]
        if any(not isinstance(size, int | float) or size < 1 for size in sizes) or sizes != sorted(set(sizes)):
            raise JobSpecError(
                f"`boundaries`: must ascend and be sizes of at least 1, e.g. (128, 512); got {boundaries!r}."
            )
        self._boundaries = tuple(sizes)
        self._size_of = size_of
        self._shards = shards
        self._limits = (max_batch_size, max_batch_weight, max_delay_seconds)
        self._clock = clock

    def expand(self, elements: beam.PCollection) -> beam.PCollection:
        """Adds the steps.

        Raises:
            JobSpecError: The windows of the collection are merged.
        """
        if elements.windowing.windowfn.is_merging():
            raise JobSpecError(
                "`StatefulLengthBatching`: state has no windows that are merged, as sessions are. Put the "
                "elements into fixed windows, or into the global window."
            )
        coder = registry.get_coder(elements.element_type)
        key = beam.ParDo(_Key(self._boundaries, self._shards, self._size_of, coder))
        emit = beam.ParDo(_Emit(coder))
        return (
            elements
            | "Key" >> key.with_output_types(tuple[BatchKey, SizedElement])
            | "Gather" >> beam.ParDo(_Gather(*self._limits, self._clock))
            | "Emit" >> emit.with_output_types(typehints.List[elements.element_type])
        )


class _Key(beam.DoFn):
    def __init__(
        self, boundaries: tuple[int, ...], shards: int, size_of: Callable[[Any], int], coder: Coder
    ) -> None:
        super().__init__()
        self._boundaries = boundaries
        self._shards = shards
        self._size_of = size_of
        self._coder = coder

    def process(self, element: Any) -> Iterator[tuple[BatchKey, SizedElement]]:
        size = self._size_of(element)
        if not isinstance(size, int) or size < 0:
            raise ValueError(f"`size_of`: must return an integer of at least 0; got {size!r}.")
        encoded = self._coder.encode(element)
        # Not at random: a repeated bundle takes the same keys.
        shard = zlib.crc32(encoded) % self._shards
        yield (bisect_right(self._boundaries, size), shard), (size, encoded)


class _Gather(beam.DoFn):
    """Holds the elements of a key until their batch is complete.

    A batch has the latest timestamp of its elements. That of a timer of processing time would be outside of the
    window, and the earliest one may be late after the first element of a batch has left.
    """

    def __init__(
        self, max_size: int, max_weight: int | None, max_delay_seconds: float, clock: Callable[[], float]
    ) -> None:
        super().__init__()
        self._max_size = max_size
        self._max_weight = math.inf if max_weight is None else max_weight
        self._max_delay_seconds = max_delay_seconds
        self._clock = clock

    def process(
        self,
        keyed: tuple[BatchKey, SizedElement],
        timestamp: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
        elements: Any = beam.DoFn.StateParam(_ELEMENTS),  # noqa: B008 - Beam's form
        held: Any = beam.DoFn.StateParam(_HELD),  # noqa: B008
        delay: Any = beam.DoFn.TimerParam(_DELAY),  # noqa: B008
        window_end: Any = beam.DoFn.TimerParam(_WINDOW_END),  # noqa: B008
    ) -> Iterator[Any]:
        """Takes an element, and emits what is complete: the batch before it, the batch with it, or both."""
        _, (size, encoded) = keyed
        count, weight, latest = held.read() or _NOTHING
        if count and weight + size > self._max_weight:
            yield _flush("weight", window, elements, held, delay)
            count, weight, latest = _NOTHING
        count, weight, latest = count + 1, weight + size, max(latest, timestamp.micros)
        elements.add((size, encoded))
        held.write((count, weight, latest))
        if count == 1:
            delay.set(self._clock() + self._max_delay_seconds)
            window_end.set(window.end)
        if count >= self._max_size:
            yield _flush("size", window, elements, held, delay)
        elif weight >= self._max_weight:
            yield _flush("weight", window, elements, held, delay)

    @on_timer(_DELAY)  # type: ignore[untyped-decorator]
    def waited(
        self,
        window: Any = beam.DoFn.WindowParam,
        elements: Any = beam.DoFn.StateParam(_ELEMENTS),  # noqa: B008
        held: Any = beam.DoFn.StateParam(_HELD),  # noqa: B008
        delay: Any = beam.DoFn.TimerParam(_DELAY),  # noqa: B008
    ) -> Iterator[Any]:
        """Emits the batch whose first element has waited for the longest time."""
        if held.read():
            yield _flush("delay", window, elements, held, delay)

    @on_timer(_WINDOW_END)  # type: ignore[untyped-decorator]
    def ended(
        self,
        window: Any = beam.DoFn.WindowParam,
        elements: Any = beam.DoFn.StateParam(_ELEMENTS),  # noqa: B008
        held: Any = beam.DoFn.StateParam(_HELD),  # noqa: B008
        delay: Any = beam.DoFn.TimerParam(_DELAY),  # noqa: B008
    ) -> Iterator[Any]:
        """Emits the last batch of a window."""
        if held.read():
            yield _flush("window_end", window, elements, held, delay)


def _flush(cause: FlushCause, window: Any, elements: Any, held: Any, delay: Any) -> Any:
    sized = list(elements.read())
    _, _, latest = held.read()
    elements.clear()
    held.clear()
    delay.clear()
    return WindowedValue((cause, sized), Timestamp(micros=latest), (window,))


class _Emit(beam.DoFn):
    """Counts batches, and decodes their elements."""

    def __init__(self, coder: Coder) -> None:
        super().__init__()
        self._coder = coder

    def process(self, flushed: tuple[FlushCause, list[SizedElement]]) -> Iterator[list[Any]]:
        cause, sized = flushed
        sizes = [size for size, _ in sized]
        weight, padded = sum(sizes), len(sizes) * max(sizes)
        _BATCHES[cause].inc()
        _SIZE.update(len(sizes))
        _WEIGHT.update(weight)
        _PADDING.update(round(100 * (1 - weight / padded)) if padded else 0)
        yield [self._coder.decode(encoded) for _, encoded in sized]
