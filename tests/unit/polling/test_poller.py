from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest

from airflow_provider_llmbeam.exceptions import AccessDeniedError, JobFailedError, LLMBeamError
from airflow_provider_llmbeam.polling.poller import PollResult


@dataclass(frozen=True, slots=True)
class DoorResult(PollResult):
    default_error: ClassVar[type[LLMBeamError]] = JobFailedError

    width: int


def test_a_result_round_trips_through_its_event():
    result = DoorResult(7, message="No.", error_type="AccessDeniedError")
    assert DoorResult.from_event(json.loads(json.dumps(result.to_event()))) == result


def test_a_result_without_an_error_type_has_no_error():
    assert DoorResult(7, message="It is open.").error is None


def test_the_error_is_of_the_named_class_and_has_the_message():
    error = DoorResult(7, message="No.", error_type="AccessDeniedError").error
    assert type(error) is AccessDeniedError
    assert str(error) == "No."


@pytest.mark.parametrize("name", ["LaterError", "annotations", "ClassVar", "error_class"])
def test_the_error_type_of_another_version_becomes_the_default_error(name):
    error = DoorResult(7, message="No.", error_type=name).error
    assert type(error) is JobFailedError
    assert str(error) == "No."
