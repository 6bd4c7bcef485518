"""All mistakes, and the page of the docs that lists them."""

from __future__ import annotations

from tests.mistakes.at_the_start import MISTAKES as AT_THE_START
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

MISTAKES: tuple[Mistake, ...] = (
    *IN_SOURCE,
    *IN_PROMPT,
    *IN_MODEL,
    *IN_LIMITS,
    *IN_SINK,
    *IN_RUNNER,
    *IN_CONVERSATION,
    *IN_MODERATION,
    *IN_SAFETY,
    *AT_THE_START,
    *IN_THE_ANSWERS,
    *IN_EVALUATION,
    *IN_REVIEW,
)

_SECTIONS = {
    "parse": (
        "When Airflow parses the Dag",
        "The Dag does not appear, and Airflow shows the sentence as an import error. A field with a template is "
        "checked when the task runs.",
    ),
    "start": ("When the task runs, before anything is sent", "The task fails, without a retry."),
    "answers": (
        "By the first answers",
        "The first 32 requests of a process are a pilot. The task fails, without a retry; refused answers are "
        "kept, so that another run does not pay for them.",
    ),
    "evaluation": (
        "In an evaluation, before anything is sent",
        "The task that evaluates fails, without a retry; literal arguments are checked when the Dag is parsed.",
    ),
    "review": (
        "When answers are selected for a review",
        "The task fails, without a retry; literal arguments are checked when the Dag is parsed.",
    ),
}
_HEAD = """# Error messages: what a mistake costs, and when it is found

Each row was run through the command line with 100 rows, against the sandbox; the tests compare this page with what
was seen. The sentences end in "Nothing was sent or billed." where that is so, which is left out here.
"""


def page() -> str:
    """Returns the text of docs/reference/mistakes.md."""
    parts = [_HEAD]
    for found, (title, about) in _SECTIONS.items():
        rows = [mistake for mistake in MISTAKES if mistake.found == found]
        parts.append(f"## {title}\n\n{about}\n")
        parts.append("| what the author wrote | what is shown | requests |\n|---|---|---|")
        parts += [f"| {_cell(row.written)} | {_cell(_shown(row.sentence))} | {row.requests} |" for row in rows]
        parts.append("")
    return "\n".join(parts)


def _shown(sentence: str) -> str:
    return sentence.removesuffix(" Nothing was sent or billed.")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
