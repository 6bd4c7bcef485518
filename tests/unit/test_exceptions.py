from __future__ import annotations

import pickle

import pytest

from airflow_provider_llmbeam.exceptions import (
    JobRefusedError,
    JobSpecError,
    SourceEmptyError,
    error_class,
    refusal,
)

UNSENT = "Nothing was sent or billed."


@pytest.mark.parametrize("kind", [JobSpecError, SourceEmptyError])
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("`key`: got ''.", f"`key`: got ''. {UNSENT}"),
        ("`key`: got ''", f"`key`: got ''. {UNSENT}"),
        ("did you mean `uri`?", f"did you mean `uri`? {UNSENT}"),
    ],
)
def test_an_error_of_the_spec_says_once_that_nothing_was_sent(kind, fault, message) -> None:
    error = kind(fault)
    assert str(error) == message
    assert str(pickle.loads(pickle.dumps(error))) == message
    assert str(error_class(kind.__name__, JobRefusedError)(message)) == message
    assert str(JobSpecError(f"Task 'a': {error}")).count("Nothing was sent") == 1


def test_what_is_refused_after_something_was_sent_does_not_say_that_nothing_was() -> None:
    kept = refusal("The topic takes no message of 2 MB.", "The answers are in the journal.")
    assert (type(kept), str(kept)) == (
        JobRefusedError,
        "The topic takes no message of 2 MB. The answers are in the journal.",
    )
    assert type(refusal("No broker.", JobSpecError.remains)) is JobSpecError
