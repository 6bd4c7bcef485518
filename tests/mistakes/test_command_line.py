"""Each mistake, through the command line: one sentence, and nothing is paid that an answer need not show."""

from __future__ import annotations

import logging

import pytest
from llmbeam_sandbox import Sandbox

from airflow_provider_llmbeam.operators.literal import literal_problems
from airflow_provider_llmbeam.pipeline.command import EXIT_BAD_SPEC, EXIT_FAILED
from airflow_provider_llmbeam.spec import JobSpec
from tests.mistakes.mistake import Mistake
from tests.mistakes.running import MODELS, run
from tests.mistakes.table import MISTAKES

#: Most characters of a sentence, and most requests for a mistake that only an answer can show.
MAX_CHARACTERS, MAX_REQUESTS = 240, 64
#: Words of the libraries, which mean nothing to an author.
JARGON = (
    "pydantic",
    "Traceback",
    "ExceptionGroup",
    "instance of",
    "tuple",
    "dictionary",
    "while running",
    "input should",
)

NUMBERED = [pytest.param(mistake, id=f"{number:03}") for number, mistake in enumerate(MISTAKES)]
PARSED = [param for param in NUMBERED if param.values[0].found == "parse"]


@pytest.fixture(scope="module")
def server():
    with Sandbox(models=MODELS) as running:
        yield running


@pytest.fixture
def place(server, tmp_path, monkeypatch):
    """An empty current directory, and the environment of the sandbox."""
    server.reset()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GOOGLE_API_KEY", "k")
    monkeypatch.setenv("AIRFLOW__LLMBEAM__ALLOWED_FUNCTIONS", "no_such_module:*")
    monkeypatch.setenv("AIRFLOW__LLMBEAM__ALLOWED_PROGRAMS", "/nowhere/prism")
    loggers = [logging.getLogger(name) for name in ("llmbeam", "airflow_provider_llmbeam", "apache_beam")]
    levels = [logger.level for logger in loggers]
    yield tmp_path
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.mark.parametrize("mistake", NUMBERED)
def test_a_mistake_is_one_sentence_and_costs_nothing_that_an_answer_need_not_show(mistake: Mistake, server, place):
    ended = run(mistake, server, place)
    assert ended.message == mistake.sentence
    assert ended.requests <= mistake.requests <= (MAX_REQUESTS if mistake.found == "answers" else 0)
    assert ended.code == (EXIT_FAILED if mistake.found == "answers" else EXIT_BAD_SPEC)


@pytest.mark.parametrize("mistake", PARSED)
def test_a_mistake_of_the_spec_is_found_when_the_dag_is_parsed(mistake: Mistake):
    unrendered = ("prompt.template", "prompt.system", "prompt.media")
    found = " ".join(map(str, literal_problems(JobSpec, mistake.spec("http://127.0.0.1:9"), unrendered)))
    expected = mistake.sentence.removesuffix(" Nothing was sent or billed.")
    # A connection may provide the project of the model.
    assert found == ("" if "`model.project`" in expected else expected)


@pytest.mark.parametrize("mistake", NUMBERED)
def test_a_sentence_is_short_and_without_words_of_the_libraries(mistake: Mistake):
    assert len(mistake.sentence) <= MAX_CHARACTERS
    assert not [word for word in JARGON if word in mistake.sentence]


def test_there_are_at_least_eighty_different_mistakes():
    assert len({mistake.written for mistake in MISTAKES}) == len(MISTAKES) >= 80
