"""The page of the report: what others wrote is shown as text, and nothing is fetched."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any, get_args

import pytest

from airflow_provider_llmbeam.engine.outcome import Failure
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, FailedRow, Origin
from airflow_provider_llmbeam.pipeline.reporting.build_report import build_report
from airflow_provider_llmbeam.pipeline.reporting.drift import compare_runs
from airflow_provider_llmbeam.pipeline.reporting.history import summary_of
from airflow_provider_llmbeam.pipeline.reporting.page import (
    ORIGIN_WORDS,
    line_path,
    nice_top,
    plot,
    render_page,
    step_path,
)
from airflow_provider_llmbeam.pipeline.reporting.report import FullPrice, Report
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally
from airflow_provider_llmbeam.pipeline.transforms.account import TallyRows
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.fields.failure_kind import FAILURE_KINDS
from airflow_provider_llmbeam.spec.safety.audit import AirflowRun
from tests.outcomes import completion

HOSTILE = {
    "script": "<script>alert(1)</script>",
    "style": "</style><img src=x onerror=alert(1)>",
    "svg": "</title></svg><svg onload=alert(1)>",
    "attribute": "\" onmouseover='alert(1)' x=\"",
    "template": "{{ 7 * 7 }}{% raw %}",
    "bidi": "cod\u202egpj.exe\u2066",
    "ansi": "\x1b[31mred\x1b[0m\x07",
    "nul": "a\0b",
    "surrogate": "half \ud83d of one",
    "long": "<" * 10**6,
}
SCHEMA = {"type": "object", "properties": {f"f{n}": {"enum": ["a"]} for n in range(10)}}


def report_of(spec: JobSpec, tally: Tally, **changes: Any) -> Report:
    return build_report(
        spec,
        tally=tally,
        answers_uris=["out/answers-00000-of-00001.jsonl"],
        dead_letter_uri="out/dead_letter-00000-of-00001.jsonl",
        report_uri="out/report.json",
        report_html_uri="out/report.html",
        started_at=1000.0,
        finished_at=1100.0,
        **changes,
    )


def tally_of(*rows: Any, labels: tuple[str, ...] | None = None) -> Tally:
    step = TallyRows((128, 512), ("id",), labels)
    for row in rows:
        step.process(row)
    step.tally.read = len(rows)
    return step.tally


def hostile_report(spec: JobSpec, text: str) -> Report:
    """A report in which everything that others write is this text."""
    rows = [
        *(
            AnsweredRow(
                {"id": number, text[:100]: text},
                f"{number:064}",
                completion(
                    text,
                    model=text,
                    finish_reason=text,
                    parsed={text[:100]: text},
                    answered_at=1000.0 + 37 * number,
                    cost_nano_usd=5_000_000,
                    rejections=1,
                    held_seconds=3.0,
                ),
                origin,
            )
            for number, origin in enumerate(get_args(Origin))
        ),
        *(
            FailedRow(
                {"id": number, text[:100]: text}, Failure(kind=kind, message=text, failed_at=1000.0 + number)
            )
            for number, kind in enumerate(FAILURE_KINDS * 3)
        ),
    ]
    report = report_of(spec, tally_of(*rows, labels=(text[:100],)))
    now = summary_of(spec, report)
    before = now.model_copy(
        update={"run": text, "labels": {text: {text: 5}}, "model": text, "models": {"other": 1}}
    )
    comparison = compare_runs(now, (before,))
    assert comparison is not None
    # As if a bucket or a Dag had such a name.
    return report.model_copy(
        update={
            "comparison": comparison,
            "full_price": FullPrice(rows=5, extra_usd=0.5, because=text[:500]),
            "name": text[:500],
            "answers_uris": [text[:500]],
            "dead_letter_uri": text[:500],
        }
    )


class Tags(HTMLParser):
    """The tags of a page, and that each is closed."""

    VOID = frozenset({"meta", "path", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.attributes: set[str] = set()
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self._open.pop() == tag

    def close(self) -> None:
        super().close()
        assert self._open == []


def tags_of(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    tags.close()
    return tags


@pytest.fixture
def spec(job) -> JobSpec:
    return job(limits={"requests_per_minute": 60})


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in HOSTILE.items()])
def test_a_hostile_text_is_shown_and_adds_no_tag(spec: JobSpec, text: str) -> None:
    harmless, hostile = (tags_of(render_page(hostile_report(spec, each))) for each in ("harmless", text))
    assert hostile.found == harmless.found
    assert hostile.attributes == harmless.attributes
    assert not {"script", "img", "link", "iframe", "a", "form"} & hostile.found
    assert not [name for name in hostile.attributes if name.startswith("on") or name in ("src", "href")]


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in HOSTILE.items()])
def test_a_page_is_small_and_holds_no_hidden_character(spec: JobSpec, text: str) -> None:
    written = render_page(hostile_report(spec, text))
    assert len(written.encode()) < 500_000
    assert not re.search("[\0-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]", written)


def test_the_page_names_no_other_address_that_is_fetched(spec: JobSpec) -> None:
    written = render_page(hostile_report(spec, "text"))
    assert "default-src 'none'" in written
    assert not re.search(r"https?://|url\(|@import", written)


def test_numbers_come_first_then_failures_labels_answers_and_files_and_the_plots_last(spec: JobSpec) -> None:
    written = render_page(hostile_report(spec, "some text"))
    headings = re.findall(r"<h2>(.*?)</h2>", re.sub(r"</?bdi>", "", written))
    assert headings == [
        "Failures",
        "Labels: some text",
        "Against the last run",
        "5 answers at random",
        "Files",
        "Where the answers come from",
        "Requests and waiting times",
        "Prompts by length",
        "Answers",
        "Over time",
    ]
    assert written.index('class="cards"') < written.index("<h2>Failures")
    assert written.count('class="card"') == 6, "two complete rows of three, or three of two"
    assert written.count("<svg") == 6
    assert "prefers-color-scheme: dark" in written


def test_the_title_is_the_task_and_its_run_and_without_airflow_the_job(spec: JobSpec) -> None:
    run = AirflowRun(dag_id="nightly_dag", task_id="<ask>", run_id="manual__1", map_index=3)
    of_task = render_page(report_of(spec.model_copy(update={"airflow_run": run}), tally_of()))
    assert "<h1><bdi>nightly_dag · &lt;ask&gt; [3] · manual__1</bdi></h1>" in of_task
    assert f"<li>job <bdi>{spec.name}</bdi></li>" in of_task, "the name by which it is found elsewhere"
    alone = render_page(report_of(spec, tally_of()))
    assert f"<h1><bdi>{spec.name}</bdi></h1>" in alone
    assert "<li>job" not in alone


def test_a_page_says_where_answers_come_from_in_words(spec: JobSpec) -> None:
    written = render_page(hostile_report(spec, "some text"))
    assert set(ORIGIN_WORDS) == set(get_args(Origin))
    assert all(words in written for words in ORIGIN_WORDS.values())
    assert "waiting for the quota" in written
    assert not re.search(r">(fresh|held|Ways|Tiers|p50|Length buckets)\b", written)


def test_a_run_without_rows_has_a_page(spec: JobSpec) -> None:
    written = render_page(report_of(spec, Tally()))
    tags_of(written)
    assert "All 0 rows answered" in written
    assert "<svg" not in written


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"deadline_at": 1160.0}, "1 min 00 s before finish_by"),
        ({"deadline_at": 1090.0}, "10 s after finish_by"),
        ({"budget_usd": 10.0}, "budget $10.00 (20.0%)"),
        ({"batch_began_at": 900.0}, "3 min 20 s"),
        ({"messages_left": 1200}, "of 1 rows, 1,200 left to the next run"),
    ],
)
def test_the_headline_compares_with_what_was_asked_for(spec: JobSpec, changes: dict[str, Any], words: str) -> None:
    rows = AnsweredRow({"id": 1}, "f", completion(cost_nano_usd=2 * 10**9), "fresh")
    assert words in render_page(report_of(spec, tally_of(rows), **changes))


def test_a_long_night_has_no_larger_page_than_a_minute(spec: JobSpec) -> None:
    night = [
        AnsweredRow({"id": n}, f"{n:064}", completion(answered_at=1000.0 + 7 * n), "fresh") for n in range(9000)
    ]
    assert len(render_page(report_of(spec, tally_of(*night)))) < 150_000


@pytest.mark.parametrize(
    ("highest", "top"), [(1, 1), (1.01, 1.5), (99, 100), (0.013, 0.015), (801, 1000), (6.0, 6), (1e-7, 1e-7)]
)
def test_the_top_of_a_plot_is_a_round_number(highest: float, top: float) -> None:
    assert nice_top(highest) == pytest.approx(top)


def test_a_plot_without_values_is_left_out() -> None:
    assert plot("t", ("a", "good", "area", [0, 0]), ("b", "bad", "line", [None])) is None


def test_a_line_is_interrupted_where_a_value_is_missing() -> None:
    assert line_path([1, 1, None, 0], 1) == "M90 16h.1L270 16M630 110h.1"
    assert step_path([1, 0], 1) == "M0 110V16H360V110H720V110Z"


@pytest.mark.parametrize(("extra_usd", "shown"), [(0.5, "for $0.50 more"), (None, "for more")])
def test_rows_that_were_sent_at_full_price_are_shown_with_the_reason(
    spec: JobSpec, extra_usd: float | None, shown: str
) -> None:
    moved = FullPrice(rows=1234, extra_usd=extra_usd, because="all jobs have ended; 2 × bad_request: no")
    written = render_page(report_of(spec, tally_of(), full_price=moved))
    assert (
        f"1,234 rows of batch inference were sent online, {shown}: <bdi>all jobs have ended; 2 × bad_request: no"
        in written
    )
    assert "were sent online" not in render_page(report_of(spec, tally_of()))
