"""The link of the report to a trace."""

from __future__ import annotations

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import Traces


@pytest.mark.parametrize(
    "url", ["https://phoenix/redirects/traces/{trace_id}", "http://mlflow:5000/#/experiments/1?trace={trace_id}"]
)
def test_the_link_of_a_tool_has_the_id_in_its_path_or_its_fragment(url):
    assert Traces(url=url).link("ab") == url.replace("{trace_id}", "ab")
    assert Traces().link("ab") is None


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("https://tool/traces", "must be an address of the web that has '{trace_id}'"),
        ("tool/{trace_id}", "must be an address of the web"),
        ("https://ann:topsecret@tool/{trace_id}", "must hold no user and no secret"),
        ("https://tool/{trace_id}?api_key=topsecret", "must hold no user and no secret"),
    ],
)
def test_a_link_without_a_place_for_the_id_or_with_a_secret_is_refused_and_not_repeated(url, fault):
    with pytest.raises(JobSpecError) as refused:
        Traces.parse({"url": url})
    assert fault in str(refused.value)
    assert "topsecret" not in str(refused.value)
