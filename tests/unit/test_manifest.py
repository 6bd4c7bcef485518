from __future__ import annotations

import base64
import gzip
import json
import random
import subprocess
from pathlib import Path

from playwright._impl._driver import compute_driver_executable

import airflow_provider_llmbeam.decorators.llmbeam
import airflow_provider_llmbeam.operators.retry_failed_rows
import airflow_provider_llmbeam.plugin
from airflow_provider_llmbeam.manifest import MAX_BYTES, PAGE_KEY, encoded_page, manifest
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

AIRFLOW_JS = Path(airflow_provider_llmbeam.plugin.__file__).parent / "static" / "airflow.js"


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


def test_the_pages_have_every_operator_that_runs_inference():
    names = {each.__name__ for each in (RunInferenceOperator, *RunInferenceOperator.__subclasses__())}
    assert "RetryFailedRowsOperator" in names
    (line,) = (each for each in AIRFLOW_JS.read_text().splitlines() if each.startswith("const OPERATORS"))
    assert {name for name in names if f'"{name}"' in line} == names


def test_the_pages_have_all_tasks_of_a_run_of_many():
    tasks = [{"task_id": f"t{number}", "operator_name": "RunInferenceOperator"} for number in range(250)]
    script = f"""
        globalThis.document = {{ baseURI: "http://airflow/" }};
        const tasks = {json.dumps(tasks)};
        globalThis.fetch = async (url) => {{
          const offset = Number(url.searchParams.get("offset") ?? 0);
          const page = {{ task_instances: tasks.slice(offset, offset + 70), total_entries: tasks.length }};
          return new Response(JSON.stringify(page));
        }};
        const source = encodeURIComponent({json.dumps(AIRFLOW_JS.read_text())});
        const {{ readTasks }} = await import("data:text/javascript," + source);
        console.log((await readTasks("dag", "run")).length);
    """
    node, _ = compute_driver_executable()
    found = subprocess.run(
        [node, "--input-type=module", "-"], input=script, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "250"


def test_the_script_of_the_plugin_reads_that_xcom():
    script = Path(airflow_provider_llmbeam.plugin.__file__).parent / "static" / "inference.js"
    assert f'readXCom(task, "{PAGE_KEY}")' in script.read_text()
