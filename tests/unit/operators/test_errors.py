"""Errors that Airflow shows hold no secrets."""

from __future__ import annotations

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from requests.exceptions import ProxyError

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.hooks.google.errors import CloudRequest, cloud_error
from airflow_provider_llmbeam.operators.errors import errors_of_airflow, unless_skipped

TEXT = "407, url='http://user:planted-password@proxy:3128'"


def test_an_error_that_a_retry_would_repeat_is_redacted():
    with pytest.raises(AirflowFailException, match=r"http://\*\*\*@proxy:3128"), errors_of_airflow():
        raise JobSpecError(TEXT)


def test_an_error_that_is_retried_is_redacted():
    with pytest.raises(JobFailedError, match=r"http://\*\*\*@proxy:3128"), errors_of_airflow():
        raise JobFailedError(TEXT)


def test_airflow_masks_the_passwords_of_the_proxies(monkeypatch):
    """It logs the causes of an error as well."""
    masked = []
    monkeypatch.setattr("airflow_provider_llmbeam.operators.errors.mask_secret", masked.append)
    monkeypatch.setenv("https_proxy", "http://user:planted-password@proxy:3128")
    with errors_of_airflow():
        pass
    assert "planted-password" in masked


def test_an_error_of_google_cloud_is_redacted():
    request = CloudRequest(action="list", project="p", service="s", role="r")
    assert "http://***@proxy:3128" in str(cloud_error(ProxyError(TEXT), request))


def test_a_skipped_job_is_a_skipped_task():
    with pytest.raises(AirflowSkipException, match="has no rows"), errors_of_airflow():
        unless_skipped({"rows": {"read": 0}, "skipped_because": "`source.uri` 'a' has no rows."})
    assert unless_skipped({"rows": {"read": 1}, "skipped_because": None})["rows"] == {"read": 1}
