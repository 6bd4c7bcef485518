"""`StatefulLengthBatching` on Beam's runners in this process: batches in a stream, and in a bounded collection."""

from __future__ import annotations

import json
import logging
from collections import Counter

import apache_beam as beam
import pytest
from apache_beam import typehints
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct import clock as beam_clock
from apache_beam.runners.direct import direct_runner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing import test_stream
from apache_beam.transforms import window
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_llmbeam.beam import StatefulLengthBatching
from airflow_provider_llmbeam.exceptions import JobSpecError

WINDOW_SECONDS = 10
#: The module that a worker imports by its name; this one it would copy.
CLOCKS = direct_runner


class SharedClock(beam_clock.TestClock):
    """The clock of the last pipeline with a `TestStream`."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        CLOCKS.llmbeam_clock = self


def processing_time():
    return CLOCKS.llmbeam_clock.time()


@pytest.fixture(scope="module", autouse=True)
def shared_clock():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct_runner, "TestClock", SharedClock)
        patch.setattr(CLOCKS, "llmbeam_clock", None, raising=False)
        yield


@pytest.fixture
def lines(tmp_path):
    """What a pipeline has written: one JSON value per line."""
    path = tmp_path / "lines.jsonl"
    path.touch()
    return path


def write(batch, path, timestamp=beam.DoFn.TimestampParam, batch_window=beam.DoFn.WindowParam):
    """Appends a batch, and where it was in event time and in processing time."""
    clock = CLOCKS.llmbeam_clock
    at = None if clock is None else processing_time()
    event = float(timestamp), float(batch_window.start), float(batch_window.end)
    with open(path, "a") as file:  # noqa: PTH123 - pickled by Beam
        file.write(json.dumps([batch, at, *event]) + "\n")


def in_stream(events, path, **limits):
    """Runs a stream; an event is `(name of a method of TestStream, its argument)`. Returns what `write` has."""
    path.write_text("")
    stream = test_stream.TestStream()
    for name, argument in events:
        stream = getattr(stream, name)(argument)
    with beam.Pipeline(runner="BundleBasedDirectRunner", options=PipelineOptions(streaming=True)) as pipeline:
        _ = (
            pipeline
            | stream.advance_watermark_to_infinity()
            | beam.WindowInto(window.FixedWindows(WINDOW_SECONDS))
            | StatefulLengthBatching((4,), clock=processing_time, **limits)
            | beam.Map(write, str(path))
        )
    return [json.loads(line) for line in path.read_text().splitlines()]


def texts(*found, at=0):
    return "add_elements", [window.TimestampedValue(text, at) for text in found]


LIMITS = {"max_batch_size": 3, "max_batch_weight": 14, "max_delay_seconds": 5}


@pytest.mark.parametrize(
    ("events", "batches"),
    [
        pytest.param([texts("a", "b", "c", "d")], [["a", "b", "c"], ["d"]], id="by its size"),
        pytest.param([texts("a" * 8), texts("b" * 7)], [["a" * 8], ["b" * 7]], id="by its weight"),
        pytest.param([texts("a" * 6), texts("b" * 8)], [["a" * 6, "b" * 8]], id="by exactly its weight"),
        pytest.param([texts("a" * 6), texts("b" * 20)], [["a" * 6], ["b" * 20]], id="before a larger element"),
        pytest.param(
            [texts("a", "c" * 4, "b", "d" * 4)], [["a", "b"], ["cccc", "dddd"]], id="by its length bucket"
        ),
        pytest.param(
            [texts("a"), ("advance_processing_time", 3), texts("b"), ("advance_processing_time", 3), texts("c")],
            [["a", "b"], ["c"]],
            id="by the delay of its first element",
        ),
        pytest.param(
            [
                texts("a", "b", "c"),
                ("advance_processing_time", 4),
                texts("d"),
                ("advance_processing_time", 4),
                texts("e"),
            ],
            [["a", "b", "c"], ["d", "e"]],
            id="by no delay of the batch before",
        ),
        pytest.param(
            [texts("a", at=1), texts("b", at=11), ("advance_watermark_to", 10), texts("c", at=12)],
            [["a"], ["b", "c"]],
            id="by the end of its window",
        ),
        pytest.param(
            [texts("a", at=1), ("advance_watermark_to", 10), texts("b", at=2)],
            [["a"], ["b"]],
            id="of late elements",
        ),
    ],
)
def test_a_batch_is_complete(lines, events, batches):
    found = [batch for batch, *_ in in_stream(events, lines, **LIMITS)]
    assert sorted(found) == sorted(batches)


def test_a_batch_leaves_at_the_time_of_its_cause(lines):
    events = [
        texts("a", at=1),
        ("advance_processing_time", 4),
        texts("b", at=2),
        ("advance_processing_time", 2),
        texts("c", at=3),
        ("advance_processing_time", 1),
        ("advance_watermark_to", 10),
    ]
    (delayed, *by_delay), (last, *by_window) = in_stream(events, lines, **LIMITS)
    assert (delayed, last) == (["a", "b"], ["c"])
    assert by_delay == [6, 2, 0, 10], "processing time, latest timestamp of its elements, window"
    assert by_window == [7, 3, 0, 10]


ELEMENTS = st.tuples(st.text("ab", max_size=9), st.integers(0, 29))
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("add_elements"), st.lists(ELEMENTS, min_size=1, max_size=8)),
        st.tuples(st.just("advance_processing_time"), st.integers(1, 7)),
        st.tuples(st.just("advance_watermark_to"), st.integers(1, 30)),
    ),
    max_size=10,
)


@pytest.mark.full
@given(EVENTS, st.integers(1, 4), st.integers(1, 20) | st.none(), st.integers(1, 3))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_element_is_in_one_batch_within_the_bounds(lines, events, size, weight, shards):
    sent, stream, watermark, clock = Counter(), [], 0, 0
    for name, argument in events:
        if name == "add_elements":
            found = [(f"{text}{len(sent)}.{number}", at) for number, (text, at) in enumerate(argument)]
            sent.update({text: at // WINDOW_SECONDS for text, at in found})
            stream.append((name, [window.TimestampedValue(*one) for one in found]))
        elif name == "advance_processing_time":
            clock += argument
            stream.append((name, argument))
        elif argument > watermark:
            watermark = argument
            stream.append((name, argument))
    written = in_stream(
        stream, lines, max_batch_size=size, max_batch_weight=weight, max_delay_seconds=5, shards=shards
    )
    assert Counter(text for batch, *_ in written for text in batch) == Counter(list(sent))
    for batch, at, timestamp, start, end in written:
        assert len(batch) <= size
        assert len(batch) == 1 or weight is None or sum(map(len, batch)) <= weight
        assert len({len(text) < 4 for text in batch}) == 1, "one length bucket"
        assert {sent[text] for text in batch} == {start // WINDOW_SECONDS}
        assert start <= timestamp < end
        assert at <= clock


def test_a_bounded_collection_is_batched_too_and_counted():
    found = [word * length for word in "ab" for length in (1, 2, 3, 8)]
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        batches = (
            pipeline
            | beam.Create(found).with_output_types(str)
            | StatefulLengthBatching((4,), max_batch_size=6, max_delay_seconds=60)
        )
        assert batches.element_type == typehints.List[str]
        _ = batches | beam.combiners.Count.Globally() | beam.Map(logging.getLogger(__name__).info)
    counted = pipeline.result.metrics().query()
    distributions = {one.key.metric.name: one.committed for one in counted["distributions"]}
    counters = {one.key.metric.name: one.committed for one in counted["counters"]}
    assert counters["batches_by_size"] == 1
    assert sum(counters.values()) == 2
    assert (distributions["batch_size"].sum, distributions["batch_size"].max) == (8, 6)
    assert distributions["batch_weight"].sum == 28
    assert distributions["batch_padding_percent"].max == 33, "12 bytes in a batch of 6 × 3"


def test_sizes_can_be_of_another_unit(lines):
    words = {"max_batch_weight": 4, "size_of": lambda text: len(text.split())}
    events = [texts("a b", "c d", "e f g", "h")]
    batches = [batch for batch, *_ in in_stream(events, lines, max_batch_size=9, max_delay_seconds=5, **words)]
    assert batches == [["a b", "c d"], ["e f g", "h"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"boundaries": (8, 4)},
            "`boundaries`: must ascend and be sizes of at least 1, e.g. (128, 512); got (8, 4).",
        ),
        ({"boundaries": (0, 4)}, "`boundaries`: must ascend and be sizes of at least 1"),
        ({"boundaries": ("128",)}, "`boundaries`: must ascend and be sizes of at least 1"),
        ({"boundaries": 128}, "`boundaries`: must ascend and be sizes of at least 1, e.g. (128, 512); got 128."),
        ({"max_batch_size": None}, "`max_batch_size`: must be a number above 0; got None."),
        ({"max_batch_weight": "64"}, "`max_batch_weight`: must be a number above 0; got '64'."),
        ({"max_delay_seconds": [5]}, "`max_delay_seconds`: must be a number above 0; got [5]."),
        ({"size_of": 3}, "`size_of`: must be a function; got 3."),
        ({"clock": None}, "`clock`: must be a function; got None."),
        ({"max_batch_size": 0}, "`max_batch_size`: must be a number above 0; got 0."),
        ({"max_batch_weight": -1}, "`max_batch_weight`: must be a number above 0; got -1."),
        ({"max_delay_seconds": 0}, "`max_delay_seconds`: must be a number above 0; got 0."),
        ({"max_delay_seconds": float("inf")}, "`max_delay_seconds`: must be a number above 0; got inf."),
        ({"shards": 0}, "`shards`: must be a number above 0; got 0."),
        ({"shards": 1.5}, "`shards`: must be a whole number; got 1.5."),
        ({"max_batch_size": 2.5}, "`max_batch_size`: must be a whole number; got 2.5."),
        ({"max_batch_size": True}, "`max_batch_size`: must be a whole number; got True."),
        ({"max_batch_weight": 10.5}, "`max_batch_weight`: must be a whole number; got 10.5."),
    ],
)
def test_an_argument_out_of_range_or_of_a_wrong_type_is_refused(arguments, message):
    with pytest.raises(JobSpecError) as raised:
        StatefulLengthBatching(**{"boundaries": (4,), "max_batch_size": 3, "max_delay_seconds": 5} | arguments)
    assert message in str(raised.value)


def test_windows_that_are_merged_are_refused():
    elements = beam.Pipeline() | beam.Create(["a"]) | beam.WindowInto(window.Sessions(10))
    with pytest.raises(JobSpecError, match="state has no windows that are merged"):
        _ = elements | StatefulLengthBatching((4,), max_batch_size=3, max_delay_seconds=5)


@pytest.mark.parametrize(
    ("element", "size_of", "message"),
    [
        (
            7,
            None,
            "elements that are no texts need a function that returns their size; got an element of type 'int'",
        ),
        ("a", lambda text: -1, "`size_of`: must return an integer of at least 0; got -1"),
        ("a", lambda text: 0.5, "`size_of`: must return an integer of at least 0; got 0.5"),
    ],
)
def test_an_element_without_a_size_fails_the_bundle(element, size_of, message):
    sized = {} if size_of is None else {"size_of": size_of}
    batching = StatefulLengthBatching((4,), max_batch_size=3, max_delay_seconds=5, **sized)
    with pytest.raises(Exception, match=message), beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = pipeline | beam.Create([element]) | batching
