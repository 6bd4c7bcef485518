"""All mistakes, and the page of the docs that lists them."""

from __future__ import annotations

from tests.mistakes.at_the_start import MISTAKES as AT_THE_START
from tests.mistakes.in_cascade import MISTAKES as IN_CASCADE
from tests.mistakes.in_conversation import MISTAKES as IN_CONVERSATION
from tests.mistakes.in_evaluation import MISTAKES as IN_EVALUATION
from tests.mistakes.in_limits import MISTAKES as IN_LIMITS
from tests.mistakes.in_model import MISTAKES as IN_MODEL
from tests.mistakes.in_moderation import MISTAKES as IN_MODERATION
from tests.mistakes.in_prompt import MISTAKES as IN_PROMPT
from tests.mistakes.in_review import MISTAKES as IN_REVIEW
from tests.mistakes.in_runner import MISTAKES as IN_RUNNER
from tests.mistakes.in_safety import MISTAKES as IN_SAFETY
from tests.mistakes.in_sink import MISTAKES as IN_SINK
from tests.mistakes.in_source import MISTAKES as IN_SOURCE
from tests.mistakes.in_the_answers import MISTAKES as IN_THE_ANSWERS
from tests.mistakes.mistake import Mistake

#: What an author was doing, and the mistakes in it.
_SUBJECTS: dict[str, tuple[Mistake, ...]] = {
    "Reading rows: `source`": IN_SOURCE,
    "Writing the prompt: `prompt`": IN_PROMPT,
    "Choosing a model and its parameters: `model`, `generation`, `embedding`": IN_MODEL,
    "Setting rates and a budget: `limits`, `batching`": IN_LIMITS,
    "Writing answers: `sink`, `state_uri`": IN_SINK,
    "Choosing where it runs: `runner`": IN_RUNNER,
    "Asking cheaper models first: `cascade`": IN_CASCADE,
    "Asking in turns: `conversation`": IN_CONVERSATION,
    "Guarding texts: `safety.moderation`": IN_MODERATION,
    "Masking personal data, auditing and alerting: `safety`, `alerts`": IN_SAFETY,
    "Starting the job: files, tables and servers": AT_THE_START,
    "Getting the first answers": IN_THE_ANSWERS,
    "Evaluating and comparing: `golden`, `metrics`": IN_EVALUATION,
    "Reviewing answers": IN_REVIEW,
}

MISTAKES: tuple[Mistake, ...] = tuple(mistake for every in _SUBJECTS.values() for mistake in every)

#: When a mistake is found, if not when Airflow parses the Dag.
_MOMENTS = {
    "parse": "",
    "start": "when the task runs",
    "answers": "by the first answers",
    "evaluation": "when it evaluates",
    "review": "when answers are selected",
}
_HEAD = """# Error messages: what a mistake costs, and when it is found

What an author wrote, and what is shown. Each was run through the command line with 100 rows, against the sandbox; the
tests compare this page with what was seen. "Nothing was sent or billed." at the end of a sentence is left out here.

| found | what follows |
|---|---|
| when Airflow parses the Dag, unless a line says otherwise | the Dag does not appear, and Airflow shows the sentence as an import error. A field with a template is checked when the task runs |
| when the task runs, evaluates, or selects answers | the task fails without a retry, before anything is sent |
| by the first answers | the first 32 requests of a process are a pilot. The task fails without a retry; refused answers are kept, so that another run does not pay for them |
"""  # noqa: E501


def page() -> str:
    """Returns the text of docs/reference/mistakes.md."""
    parts = [_HEAD]
    for title, every in _SUBJECTS.items():
        parts.append(f"## {title}\n")
        parts += [_entry(mistake) for mistake in sorted(every, key=lambda each: [*_MOMENTS].index(each.found))]
        parts.append("")
    return "\n".join(parts)


def _entry(mistake: Mistake) -> str:
    requests = f"{mistake.requests} request{'s' * (mistake.requests > 1)}" if mistake.requests else ""
    notes = ", ".join(filter(None, (_MOMENTS[mistake.found], requests)))
    written = f"{mistake.written} ({notes})" if notes else mistake.written
    return f"- {_line(written)}\\\n  {_line(mistake.sentence.removesuffix(' Nothing was sent or billed.'))}"


def _line(text: str) -> str:
    return text.replace("\n", " ")
