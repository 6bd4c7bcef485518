from __future__ import annotations

import pytest

from airflow_provider_llmbeam.engine.backend import kind_of_status
from airflow_provider_llmbeam.spec.fields.failure_kind import FailureKind


@pytest.mark.parametrize(
    ("http_status", "kind"),
    [
        (400, "bad_request"),
        (401, "unauthorized"),
        (402, "quota_exhausted"),
        (403, "unauthorized"),
        (404, "not_found"),
        (408, "timeout"),
        (409, "server_error"),
        (413, "bad_request"),
        (422, "bad_request"),
        (425, "server_error"),
        (429, "throttled"),
        (499, "server_error"),
        (500, "server_error"),
        (502, "server_error"),
        (503, "server_error"),
        (504, "server_error"),
        (529, "server_error"),
    ],
)
def test_an_http_status_determines_the_failure_kind(http_status: int, kind: FailureKind) -> None:
    assert kind_of_status(http_status) == kind
