from __future__ import annotations

import base64
import gzip
import random
from pathlib import Path

import airflow_provider_llmbeam.plugin
from airflow_provider_llmbeam.manifest import MAX_BYTES, PAGE_KEY, encoded_page, manifest


def test_a_manifest_has_the_counts_of_a_report_and_neither_its_rows_nor_its_spec():
    counts = {
        "rows": {"read": 2, "answered": 2, "dead_letter": 0},
        "cost_usd": 0.1,
        "report_uri": "gs://out/report.json",
    }
    assert manifest(counts | {"samples": [{"row": "a"}], "answers": {"labels": {}}, "spec": {}}) == counts


def test_equal_pages_are_equal_xcoms_whenever_they_are_made():
    compressed = base64.b64decode(encoded_page("<p>", "gs://out/report.html")["html_gzip"])
    assert compressed[4:8] == bytes(4), "the time of the compression (RFC 1952)"


def test_a_page_is_compressed_in_its_xcom():
    found = encoded_page("<p>ä</p>" * 10_000, "gs://out/report.html")
    assert gzip.decompress(base64.b64decode(found["html_gzip"])).decode() == "<p>ä</p>" * 10_000
    assert len(found["html_gzip"]) < 1_000


def test_a_page_that_is_too_large_is_named_by_its_address():
    html = random.Random(0).randbytes(MAX_BYTES).hex()
    assert encoded_page(html, "gs://out/report.html") == {"uri": "gs://out/report.html", "html_gzip": None}


def test_the_script_of_the_plugin_reads_that_xcom():
    script = Path(airflow_provider_llmbeam.plugin.__file__).parent / "static" / "inference.js"
    assert f'readXCom(task, "{PAGE_KEY}")' in script.read_text()
