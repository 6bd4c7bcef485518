"""`LLMInference` in a custom pipeline."""

from __future__ import annotations

import dataclasses
import typing

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing import test_stream
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.window import FixedWindows, GlobalWindow, Sessions, SlidingWindows, TimestampedValue
from llmbeam_sandbox import Fault

from airflow_provider_llmbeam.beam import LLMInference
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.launch.prism import prism_options
from airflow_provider_llmbeam.spec import GeminiModel, Limits, PromptTemplate
from airflow_provider_llmbeam.spec.runner import PrismRunner
from tests.prism import prism_binary

GEMINI = "gemini.generateContent"
PROMPT = "Label {{ row.text }}"
SCHEMA = {
    "type": "object",
    "properties": {
        "label": {"enum": ["late", "lost"]},
        "score": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "parcel": {"type": "object", "properties": {"pieces": {"type": "integer"}}},
    },
    "required": ["label"],
}


class Ticket(typing.NamedTuple):
    id: int
    text: str


@dataclasses.dataclass
class Note:
    id: int
    text: str


ROWS = [beam.Row(id=number, text=f"ticket {number}") for number in range(20)]


@pytest.fixture
def model(sandbox):
    return {"type": "gemini", "name": "gemini-2.5-flash", "base_url": sandbox.gemini_url}


def run(rows, inference, check):
    """Runs a pipeline; `check` is applied to what the transform gives."""
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        check((pipeline | beam.Create(rows)) | inference)
    return pipeline.result


def both(good, failed):
    """Returns a check of both outputs."""

    def check(outputs):
        assert_that(outputs["good"], good, "good")
        assert_that(outputs["failed"], failed, "failed")

    return check


def test_each_row_is_answered_or_failed_once_in_spite_of_429s(sandbox, model):
    sandbox.faults.queue(GEMINI, *[Fault(kind="rate-limit", retry_delay_seconds=0.01)] * 5)
    sandbox.faults.when(GEMINI, "ticket 13", Fault(kind="error", http_status=400, message="no"))

    def good(rows):
        assert sorted(row.id for row in rows) == [number for number in range(20) if number != 13]
        assert all(row.answer.startswith(f"Label {row.text} [") for row in rows)

    failed = equal_to([beam.Row(element=ROWS[13], msg="bad_request: no", stack="")])
    run(ROWS, LLMInference(PROMPT, model, error_handling={"output": "failed"}), both(good, failed))


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ("struct", ["id", "text", "answer"]),
        ("flat", ["id", "text", "label", "score", "tags", "parcel"]),
        ("json", ["id", "text", "answer"]),
    ],
)
def test_the_fields_of_the_answer_have_the_types_of_the_schema(model, columns, names):
    prompt = {"template": PROMPT, "output_schema": SCHEMA}

    def check(answered):
        assert [name for name, _ in answered.element_type._fields] == names
        # A shuffle encodes each row by its schema.
        assert_that(answered | beam.Reshuffle(), seen)

    def seen(rows):
        assert [row.id for row in sorted(rows)] == list(range(20))
        for row in rows:
            if columns == "json":
                assert row.answer.startswith('{"label": "l')
                continue
            answer = row if columns == "flat" else row.answer
            assert answer.label in ("late", "lost")
            assert isinstance(answer.parcel.pieces, int)

    run(ROWS, LLMInference(prompt, model, answer_columns=columns), check)


@pytest.mark.full
@pytest.mark.parametrize("kind", [Ticket, Note], ids=["named tuple", "dataclass"])
def test_rows_may_be_of_a_class(model, kind):
    def check(rows):
        assert sorted((row.id, row.text) for row in rows) == [(1, "one"), (2, "two")]

    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        rows = pipeline | beam.Create([kind(1, "one"), kind(2, "two")]).with_output_types(kind)
        assert_that(rows | LLMInference(PROMPT, model), check)


@pytest.mark.parametrize("kind", [Ticket, Note, beam.Row], ids=["named tuple", "dataclass", "row"])
def test_rows_of_a_class_need_no_schema(model, kind):
    def without_annotation(number):
        return kind(id=number, text=f"ticket {number}")

    def check(rows):
        assert sorted((row["id"], row["answer"].split(" [")[0]) for row in rows) == [
            (1, "Label ticket 1"),
            (2, "Label ticket 2"),
        ]

    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        rows = pipeline | beam.Create([1, 2]) | beam.Map(without_annotation).with_output_types(typing.Any)
        assert_that(rows | LLMInference(PROMPT, model), check)


def test_mappings_have_the_answer_as_another_item(model):
    rows = [{"id": 1, "text": "one"}, {"id": 2, "text": "two"}, {"id": 3}]

    def good(found):
        assert [sorted(row) for row in found] == [["answer", "id", "text"]] * 2

    def failed(found):
        assert [(row.element, row.msg) for row in found] == [
            ({"id": 3}, "template_error: no column 'text'; there are ['id']")
        ]

    run(rows, LLMInference(PROMPT, model, error_handling={"output": "failed"}), both(good, failed))


class Address(typing.NamedTuple):
    city: str


@pytest.mark.parametrize(
    ("rows", "are_mappings"),
    [
        (
            [beam.Row(address=beam.Row(city="Rome"), lines=[beam.Row(sku="a", n=1)], where={"to": beam.Row(x=1)})],
            False,
        ),
        ([{"address": Address("Rome"), "lines": [beam.Row(sku="a", n=1)], "where": {"to": beam.Row(x=1)}}], False),
        ([{"address": {"city": "Rome"}, "lines": [{"sku": "a", "n": 1}], "where": {"to": {"x": 1}}}], True),
    ],
    ids=["schema", "mappings of rows", "mappings"],
)
@pytest.mark.parametrize("is_shuffled", [False, True], ids=["as made", "as decoded"])
def test_rows_within_a_row_are_mappings_in_its_prompt_and_come_out_as_they_went_in(
    rows, are_mappings, is_shuffled
):
    template = (
        "{{ row.address }} {{ row.address.city }} {{ row.address | tojson }} {{ row.lines }} "
        "{{ row.lines[0].sku }} {{ row.where }}"
    )
    prompt = "{'city': 'Rome'} Rome {\"city\": \"Rome\"} [{'sku': 'a', 'n': 1}] a {'to': {'x': 1}}"

    def check(found):
        (row,) = found
        assert row["answer"].startswith(prompt)
        within = (row["address"], row["lines"][0], row["where"]["to"])
        assert [type(each) is dict for each in within] == [are_mappings] * 3

    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        given = pipeline | beam.Create(rows)
        if is_shuffled:
            given = given | beam.Reshuffle()
        answered = given | LLMInference(template, {"type": "echo"})
        assert_that(answered | beam.Map(lambda row: row if isinstance(row, dict) else row._asdict()), check)


@pytest.mark.full
def test_the_error_output_has_the_rows_within_a_row_as_they_went_in(model):
    rows = [{"address": Address("Rome")}]
    failed = equal_to([({"address": Address("Rome")}, Address)])

    def check(outputs):
        types = outputs["failed"] | beam.Map(lambda row: (row.element, type(row.element["address"])))
        assert_that(types, failed)

    run(rows, LLMInference(PROMPT, model, error_handling={"output": "failed"}), check)


def test_equal_prompts_are_sent_once_and_a_second_pipeline_takes_the_answers_from_the_journal(
    sandbox, model, tmp_path
):
    rows = [beam.Row(id=number, text=f"ticket {number % 5}") for number in range(50)]

    def check(found):
        assert sorted(row.id for row in found) == list(range(50))

    for _ in range(2):
        inference = LLMInference(PROMPT, model, journal_uri=str(tmp_path / "journal"))
        run(rows, inference, lambda answered: assert_that(answered, check))
    assert len(sandbox.requests) == 5


def test_an_unbounded_source_is_answered_row_by_row(model):
    def check(found):
        assert sorted(row.id for row in found) == [1, 2]

    stream = (
        test_stream.TestStream().add_elements([Ticket(1, "one"), Ticket(2, "two")]).advance_watermark_to_infinity()
    )
    options = beam.options.pipeline_options.PipelineOptions(streaming=True)
    with beam.Pipeline(runner="BundleBasedDirectRunner", options=options) as pipeline:
        rows = pipeline | stream | beam.Map(lambda row: row).with_output_types(Ticket)
        assert_that(rows | LLMInference(PROMPT, model), check)


#: Seconds of event time, and texts; the third prompt is refused by the server, the last row has none.
TIMED = [(5, "same"), (65, "same"), (70, "refused"), (130, "same"), (185, None)]


def timed(at, text):
    return TimestampedValue({"at": at} | ({"text": text} if text else {}), at)


def placed(row, at=beam.DoFn.TimestampParam, window=beam.DoFn.WindowParam):
    return getattr(row, "element", row)["at"], float(at), (float(window.start), float(window.end))


def placed_answer(row, at=beam.DoFn.TimestampParam, window=beam.DoFn.WindowParam):
    return row["at"], row["answer"].split(" [")[0], float(at), (float(window.start), float(window.end))


def check_places(outputs, windows):
    """Checks that each row is at its time, in these windows of it."""
    for name, ats in (("good", [5, 65, 130]), ("failed", [70, 185])):
        expected = [(at, at, window) for at in ats for window in windows(at)]
        assert_that(outputs[name] | f"Place {name}" >> beam.Map(placed), equal_to(expected), name)


@pytest.mark.full
@pytest.mark.parametrize(
    ("windowing", "windows"),
    [
        (FixedWindows(60), lambda at: [(at // 60 * 60, at // 60 * 60 + 60)]),
        (
            SlidingWindows(120, 60),
            lambda at: [(at // 60 * 60 + back, at // 60 * 60 + back + 120) for back in (-60, 0)],
        ),
        (Sessions(10), lambda at: [(at, at + 10)]),
        (None, lambda at: [(float(GlobalWindow().start), float(GlobalWindow().end))]),
    ],
    ids=["fixed", "sliding", "sessions", "global"],
)
@pytest.mark.parametrize("is_bounded", [True, False], ids=["bounded", "unbounded"])
def test_each_row_keeps_its_timestamp_and_its_windows(sandbox, model, windowing, windows, is_bounded):
    sandbox.faults.when(GEMINI, "refused", Fault(kind="error", http_status=400, message="no"))
    source = beam.Create(TIMED) | beam.MapTuple(timed)
    arguments = {"runner": FnApiRunner()}
    if not is_bounded:
        source = test_stream.TestStream().add_elements([timed(*row) for row in TIMED])
        source = source.advance_watermark_to_infinity()
        options = beam.options.pipeline_options.PipelineOptions(streaming=True)
        arguments = {"runner": "BundleBasedDirectRunner", "options": options}
    with beam.Pipeline(**arguments) as pipeline:
        rows = pipeline | source
        if windowing is not None:
            rows = rows | beam.WindowInto(windowing)
        check_places(rows | LLMInference(PROMPT, model, error_handling={"output": "failed"}), windows)
    assert len(sandbox.requests) == (2 if is_bounded else 4)


@pytest.mark.parametrize(
    "workers",
    [
        "in_memory",
        *(pytest.param(each, marks=pytest.mark.full) for each in ("multi_threading", "multi_processing", "prism")),
    ],
)
def test_each_bounded_row_is_answered_exactly_once_in_each_window_of_it_on_every_local_runner(
    sandbox, model, workers
):
    rows = [(second, f"text {second % 12}") for second in range(120)]
    if workers == "prism":
        options = prism_options(PrismRunner(type="prism", binary_path=prism_binary()))
    else:
        number = 1 if workers == "in_memory" else 2
        options = {"runner": "FnApiRunner", "direct_num_workers": number, "direct_running_mode": workers}
    with beam.Pipeline(options=PipelineOptions(flags=[], **options)) as pipeline:
        windowed = pipeline | beam.Create(rows) | beam.Reshuffle() | beam.MapTuple(timed)
        answered = windowed | beam.WindowInto(SlidingWindows(60, 30)) | LLMInference(PROMPT, model)
        expected = [
            (at, f"Label text {at % 12}", at, (at // 30 * 30 + back, at // 30 * 30 + back + 60))
            for at, _ in rows
            for back in (-30, 0)
        ]
        found = answered | beam.Map(placed_answer)
        assert_that(found, equal_to(expected))
    assert len(sandbox.requests) == 12


@pytest.mark.full
def test_rows_of_a_stream_are_in_the_windows_that_a_later_step_gives_them(model):
    stream = test_stream.TestStream()
    for minute in range(3):
        stream = stream.add_elements([timed(minute * 60 + 5, "same")]).advance_watermark_to(minute * 60 + 59)
    options = beam.options.pipeline_options.PipelineOptions(streaming=True)
    with beam.Pipeline(runner="BundleBasedDirectRunner", options=options) as pipeline:
        answered = pipeline | stream.advance_watermark_to_infinity() | LLMInference(PROMPT, model)
        counted = (
            answered | beam.WindowInto(FixedWindows(60)) | beam.Map(lambda row: ("n", 1)) | beam.CombinePerKey(sum)
        )
        found = counted | beam.Map(lambda pair, window=beam.DoFn.WindowParam: (float(window.start), pair[1]))
        assert_that(found, equal_to([(0, 1), (60, 1), (120, 1)]))


@pytest.mark.full
@pytest.mark.parametrize("has_files", [False, True], ids=["text", "files"])
def test_no_bounded_row_is_late_in_a_stream_whose_runner_does_not_fuse_steps(model, tmp_path, has_files):
    (tmp_path / "same.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    files = {"media": [{"uri": f"{tmp_path}/{{{{ row.text }}}}.png"}]} if has_files else {}
    options = beam.options.pipeline_options.PipelineOptions(streaming=True)
    with beam.Pipeline(runner="BundleBasedDirectRunner", options=options) as pipeline:
        rows = pipeline | beam.Create([(minute * 60 + 5, "same") for minute in range(3)]) | beam.MapTuple(timed)
        answered = rows | LLMInference({"template": PROMPT, **files}, model)
        counted = (
            answered | beam.WindowInto(FixedWindows(60)) | beam.Map(lambda row: ("n", 1)) | beam.CombinePerKey(sum)
        )
        found = counted | beam.Map(lambda pair, window=beam.DoFn.WindowParam: (float(window.start), pair[1]))
        assert_that(found, equal_to([(0, 1), (60, 1), (120, 1)]))


@pytest.mark.full
def test_rows_with_files_keep_their_timestamps_and_windows(sandbox, model, tmp_path):
    (tmp_path / "same").write_bytes(b"\x89PNG\r\n\x1a\n")
    prompt = {"template": PROMPT, "media": [{"uri": f"{tmp_path}/{{{{ row.text }}}}", "mime_type": "image/png"}]}
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        rows = pipeline | beam.Create(TIMED) | beam.MapTuple(timed) | beam.WindowInto(FixedWindows(60))
        outputs = rows | LLMInference(prompt, model, error_handling={"output": "failed"})
        check_places(outputs, lambda at: [(at // 60 * 60, at // 60 * 60 + 60)])
    assert len(sandbox.requests) == 1


def test_files_that_a_row_may_not_name_are_failed_rows(sandbox, model, tmp_path):
    (tmp_path / "photo.png").write_bytes(b"\x89PNG")
    prompt = {"template": PROMPT, "media": [{"uri": f"{tmp_path}/photos/{{{{ row.text }}}}"}]}
    inference = LLMInference(prompt, model, error_handling={"output": "failed"})

    def failed(found):
        ((element, msg, _),) = found
        assert element.text == "../photo.png"
        assert "media_error: `prompt.media.0`: " in msg
        assert "is not below" in msg

    run([beam.Row(id=1, text="../photo.png")], inference, both(equal_to([]), failed))
    assert len(sandbox.requests) == 0


def test_an_answer_that_does_not_fit_its_field_is_a_failed_row(sandbox, model):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 2**70, "maximum": 2**70}}}
    prompt = {"template": PROMPT, "output_schema": schema | {"required": ["n"]}}
    inference = LLMInference(prompt, model, error_handling={"output": "failed"})

    def failed(found):
        assert [row.msg for row in found] == [
            "invalid_output: the answer does not fit its fields: no value of type int64"
        ]

    run(ROWS[:1], inference, both(equal_to([]), failed))


def test_without_error_handling_a_failed_row_ends_the_pipeline(sandbox, model):
    sandbox.faults.when(GEMINI, "ticket 3", Fault(kind="error", http_status=400, message="no"))
    with pytest.raises(Exception, match=r"A row has no answer: bad_request: no\. Set `error_handling` to"):
        run(ROWS, LLMInference(PROMPT, model), lambda answered: answered)


def test_the_parts_may_be_values_of_the_specs(sandbox):
    inference = LLMInference(
        PromptTemplate(template=PROMPT, system="Be short."),
        GeminiModel(name="gemini-2.5-flash", base_url=sandbox.gemini_url),
        limits=Limits(requests_per_minute=60_000),
    )
    run(
        ROWS[:3],
        inference,
        lambda answered: assert_that(answered | beam.Map(lambda row: row.id), equal_to([0, 1, 2])),
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": {"type": "gemni"}}, r"`model\.type`: must be one of .* got 'gemni'"),
        (
            {"limits": {"request_per_minute": 1}},
            r"`limits\.request_per_minute`: there is no such field; did you mean",
        ),
        ({"prompt": "Hello"}, r"`prompt\.template`: uses no column"),
        ({"answer_columns": "wide"}, r"`answer_columns`: must be 'struct', 'flat' or 'json'; got 'wide'"),
        ({"answer_columns": "flat"}, r"`answer_columns`: 'flat' needs a `prompt\.output_schema` of an object"),
        ({"journal_uri": "a*"}, r"`journal_uri`: must be one directory"),
        ({"journal_uri": 3}, r"`journal_uri`: must be a text; got 3"),
        ({"journal_uri": ["a"]}, r"`journal_uri`: must be a text; got \['a'\]"),
        (
            {"limits": {"budget_usd": 1}, "model": {"type": "openai", "name": "m", "base_url": "http://h"}},
            r"`limits\.price`",
        ),
        ({"error_handling": {"output": "bad", "threshold": 1}}, r"`error_handling`: must be \{'output': NAME\}"),
        ({"error_handling": {"output": "good"}}, r"`error_handling`: must be .* not 'good'"),
        ({"environment_secrets": []}, r"`environment_secrets`: must be an object with named fields; got '…'"),
        (
            {"environment_secrets": {"GOOGLE_API_KEY": "AIza"}},
            r"`environment_secrets`: must name a secret for 'GOOGLE_API_KEY': 'projects/…/secrets",
        ),
        ({"error_handling": "failed"}, r"`error_handling`: must be .* got 'failed'"),
    ],
    ids=str,
)
def test_a_wrong_parameter_is_named(model, arguments, message):
    with pytest.raises(JobSpecError, match=message) as raised:
        LLMInference(**{"prompt": PROMPT, "model": model} | arguments)
    assert "Nothing was sent or billed." in str(raised.value)


@pytest.mark.parametrize(
    "rows", [[beam.Row(text="a", answer="b")], [{"text": "a", "answer": "b"}]], ids=["rows", "mappings"]
)
def test_a_column_that_the_answer_would_replace_is_refused(sandbox, model, rows):
    with pytest.raises(Exception, match=r"The rows have 'answer' already, which the answer would replace"):
        run(rows, LLMInference(PROMPT, model), lambda answered: answered)
    assert len(sandbox.requests) == 0


def test_elements_that_are_no_rows_are_refused(sandbox, model):
    with pytest.raises(Exception, match=r"`LLMInference` takes rows .* got a value of type 'str'"):
        run(["a"], LLMInference(PROMPT, model), lambda answered: answered)
    assert len(sandbox.requests) == 0
