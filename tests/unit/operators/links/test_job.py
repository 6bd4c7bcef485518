from __future__ import annotations

import pytest

from airflow_provider_llmbeam.operators.links import (
    DataflowLink,
    OutputLink,
    ReportLink,
    dataflow_url,
    output_url,
    report_url,
)
from airflow_provider_llmbeam.spec import JobSpec


def spec(sink, **parts):
    return JobSpec.parse(
        {
            "name": "nightly",
            "source": {"uri": "gs://rows/in.jsonl", "key": ["id"]},
            "prompt": {"template": "Say {{ row.text }}"},
            "model": {"type": "echo"},
            "sink": sink,
            **parts,
        }
    )


def test_a_job_has_a_page_in_the_console():
    assert dataflow_url("acme-prod", "europe-west1", "2026-11-20_01_02_03-4") == (
        "https://console.cloud.google.com/dataflow/jobs/europe-west1/2026-11-20_01_02_03-4?project=acme-prod"
    )


def test_a_project_of_a_domain_is_quoted():
    assert dataflow_url("acme.com:prod", "europe-west1", "j").endswith("?project=acme.com%3Aprod")


@pytest.mark.parametrize(
    ("sink", "parts", "url"),
    [
        ({"uri": "gs://rows/out"}, {}, "https://console.cloud.google.com/storage/browser/rows/out"),
        ({"uri": "gs://rows/a b"}, {}, "https://console.cloud.google.com/storage/browser/rows/a%20b"),
        ({"uri": "/data/out"}, {}, None),
        (
            {"type": "bigquery", "table": "acme-prod.shop.answers"},
            {"state_uri": "gs://rows/state"},
            "https://console.cloud.google.com/bigquery?project=acme-prod&"
            "ws=%211m5%211m4%214m3%211sacme-prod%212sshop%213sanswers",
        ),
        (
            {"type": "postgres", "table": "answers"},
            {"state_uri": "gs://rows/state"},
            "https://console.cloud.google.com/storage/browser/rows/state/nightly",
        ),
        ({"type": "postgres", "table": "answers"}, {"state_uri": "/data/state"}, None),
        (
            {"type": "milvus", "uri": "https://milvus.acme.com", "collection": "docs"},
            {"task": "embed", "state_uri": "gs://rows/state"},
            "https://milvus.acme.com",
        ),
    ],
)
def test_answers_have_a_page_where_a_browser_can_show_one(sink, parts, url):
    assert output_url(spec(sink, **parts)) == url


def test_each_link_has_a_key_of_its_own():
    links = (DataflowLink(), OutputLink(), ReportLink())
    assert len({link.xcom_key for link in links}) == len({link.name for link in links}) == len(links)


@pytest.mark.parametrize(
    ("uri", "url"),
    [
        ("gs://rows/a b/report.html", "https://storage.cloud.google.com/rows/a%20b/report.html"),
        ("/data/out/report.html", None),
        (None, None),
    ],
)
def test_a_report_on_cloud_storage_has_an_address_that_a_browser_shows(uri, url):
    assert report_url({"report_html_uri": uri}) == url


def test_a_report_of_a_job_that_an_earlier_version_submitted_has_no_page():
    assert report_url({}) is None


@pytest.mark.parametrize(("left", "shown"), [("https://x.test/", "https://x.test/"), (None, "")])
def test_a_link_is_the_value_that_the_task_stored(monkeypatch, left, shown):
    from airflow.sdk.execution_time.xcom import XCom

    asked = []

    def get_value(*, ti_key, key):
        asked.append((ti_key, key))
        return left

    monkeypatch.setattr(XCom, "get_value", get_value)
    assert DataflowLink().get_link(None, ti_key="ti") == shown
    assert asked == [("ti", "llmbeam_dataflow_link")]
