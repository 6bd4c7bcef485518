"""A preview as text and as a table."""

from __future__ import annotations

from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.kept import keeper_of
from airflow_provider_llmbeam.spec.protocol.preview import MAX_CHARACTERS, Preview, PreviewedRow

JOB = {
    "name": "job",
    "source": {"uri": "rows.jsonl", "key": ["id"]},
    "prompt": {"template": "{{ row.text }}"},
    "model": {"type": "echo"},
    "sink": {"uri": "out"},
}
HOSTILE = "\x1b[2J<script>x</script>\u202e"
ANSWERED = PreviewedRow(
    key='{"id": 1}', prompt="Say it", system="Be short.", media=("gs://b/a.png",), estimated_tokens=5,
    origin="fresh", answer=HOSTILE, model="gemini", input_tokens=7, output_tokens=2, cost_usd=0.25,
    latency_seconds=0.5, has_schema=True,
)  # fmt: skip
PREVIEW = Preview(job="nightly", rows=(ANSWERED,), sent=1, cost_usd=0.25)


def test_a_row_is_shown_with_its_prompt_its_answer_and_what_it_cost():
    assert str(PREVIEW).splitlines()[1:] == [
        "System   Be short.",
        "Prompt   Say it",
        "Media    gs://b/a.png",
        "Answer   ␛[2J<script>x</script>⟨202E⟩",
        "Tokens   7 in, 2 out · $0.25 · 0.5 s · matches the schema · gemini",
        "",
        "1 prompt was sent for $0.25; the job keeps the answers.",
    ]


def test_what_a_model_said_is_neither_obeyed_by_a_terminal_nor_by_a_notebook():
    assert "\x1b" not in str(PREVIEW)
    table = PREVIEW._repr_html_()
    assert "&lt;script&gt;x&lt;/script&gt;" in table
    assert "<script>" not in table
    assert "\x1b" not in table


def test_a_long_text_is_cut_and_a_long_line_is_wrapped():
    row = PreviewedRow(key="1", prompt="word " * MAX_CHARACTERS)
    lines = str(Preview(job="j", rows=(row,), sent=0, cost_usd=0.0)).splitlines()
    assert max(map(len, lines)) <= 100
    assert f"… ({5 * MAX_CHARACTERS:,} characters)" in "\n".join(lines)


def test_a_row_without_a_prompt_an_answer_from_earlier_and_an_unsent_one_say_so():
    failed = PreviewedRow(key="1", failure="no column 'text'")
    assert list(failed.lines()) == ["Failed   no column 'text'"]
    known = PreviewedRow(key="2", prompt="p", answer="a", origin="known", input_tokens=3)
    assert list(known.lines())[-1] == "Tokens   3 in, 0 out · answered earlier, nothing was sent"
    unsent = PreviewedRow(key="3", prompt="p", estimated_tokens=1200)
    assert list(unsent.lines())[-1] == "Tokens   about 1,200 in the prompt"


def test_where_no_prompt_that_was_sent_has_an_answer_the_summary_says_so():
    failed = PreviewedRow(key="1", prompt="p", origin="fresh", failure="models/gemini-x is not found")
    known = PreviewedRow(key="2", prompt="q", origin="known", answer="a")
    one = Preview(job="j", rows=(failed, known), sent=1, cost_usd=0.0)
    assert one.summary == "1 prompt was sent for $0.00; it was not answered."
    two = Preview(job="j", rows=(failed, failed), sent=2, cost_usd=0.0012)
    assert two.summary == "2 prompts were sent for $0.0012; none was answered."
    assert Preview(job="j", rows=(failed, ANSWERED), sent=2, cost_usd=0.25).summary.endswith("keeps the answers.")


def test_where_no_other_run_uses_the_answers_it_says_what_lets_them():
    run = {"dag_id": "shop", "task_id": "ask", "run_id": "manual__1", "names_job": True}
    of_run = JobSpec.parse({**JOB, "airflow_run": run})
    kept = "run 'manual__1' keeps the answers, and others use them only with `cache` or `job_name`"
    assert keeper_of(of_run) == kept
    shown = Preview(job="j", rows=(ANSWERED,), sent=1, cost_usd=0.25, keeper=kept)
    assert shown.summary == f"1 prompt was sent for $0.25; {kept}."
    others = (
        {},
        {"airflow_run": {**run, "names_job": False}},
        {"airflow_run": run, "cache": {"scope": "moods"}, "state_uri": "state/"},
    )
    assert {keeper_of(JobSpec.parse(JOB | changes)) for changes in others} == {"the job keeps the answers"}


def test_a_preview_survives_json_and_says_what_it_sent():
    assert Preview.of(PREVIEW.plain()) == PREVIEW
    assert Preview(job="j", rows=(), sent=0, cost_usd=0.0).summary == "Nothing was sent or billed."
    assert Preview(job="j", rows=(), sent=2, cost_usd=None).summary.startswith("2 prompts were sent at a price")
