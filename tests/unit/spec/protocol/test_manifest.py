from __future__ import annotations

import base64
import gzip
import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from playwright._impl._driver import compute_driver_executable

import airflow_provider_llmbeam.integrations.plugin
import airflow_provider_llmbeam.operators.retry_failed_rows
import airflow_provider_llmbeam.operators.taskflow
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.spec.protocol.manifest import (
    MAX_BYTES,
    PAGE_KEY,
    closing_lines,
    encode_page,
    manifest,
)

AIRFLOW_JS = Path(airflow_provider_llmbeam.integrations.plugin.__file__).parent / "static" / "airflow.js"
REPORT_PAGE = AIRFLOW_JS.parents[3] / "pipeline" / "reporting" / "page.html.jinja"


def test_a_manifest_has_the_counts_of_a_report_and_neither_its_rows_nor_its_spec():
    counts = {
        "rows": {"read": 2, "answered": 2, "dead_letter": 0},
        "cost_usd": 0.1,
        "report_uri": "gs://out/report.json",
    }
    assert manifest(counts | {"samples": [{"row": "a"}], "answers": {"labels": {}}, "spec": {}}) == counts


def test_equal_pages_are_equal_xcoms_whenever_they_are_made():
    compressed = base64.b64decode(encode_page("<p>", "gs://out/report.html")["html_gzip"])
    assert compressed[4:8] == bytes(4), "the time of the compression (RFC 1952)"


def test_a_page_is_compressed_in_its_xcom():
    found = encode_page("<p>ä</p>" * 10_000, "gs://out/report.html")
    assert gzip.decompress(base64.b64decode(found["html_gzip"])).decode() == "<p>ä</p>" * 10_000
    assert len(found["html_gzip"]) < 1_000


def test_a_page_that_is_too_large_is_named_by_its_address():
    html = random.Random(0).randbytes(MAX_BYTES).hex()
    assert encode_page(html, "gs://out/report.html") == {"uri": "gs://out/report.html", "html_gzip": None}


def test_the_pages_have_every_operator_that_runs_inference_or_measures_it():
    running = {each.__name__ for each in (RunInferenceOperator, *RunInferenceOperator.__subclasses__())}
    assert "RetryFailedRowsOperator" in running
    measuring = {"EstimateInferenceOperator", "EvaluateInferenceOperator", "CompareInferenceOperator"}
    for name, operators in (("RUNNING", running), ("MEASURING", measuring)):
        (line,) = (each for each in AIRFLOW_JS.read_text().splitlines() if each.startswith(f"const {name} "))
        assert {each for each in operators if f'"{each}"' in line} == operators


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


def test_the_history_says_that_the_cost_of_some_tasks_of_a_run_is_not_known(tmp_path):
    for name in ("airflow.js", "history.js"):
        (tmp_path / name).write_bytes(AIRFLOW_JS.with_name(name).read_bytes())
    (tmp_path / "package.json").write_text('{"type": "module"}')
    costs = {"some": [1.2, None, None], "all": [1.2, 0.3], "none": [None]}
    (tmp_path / "page.js").write_text(f"""
        const costs = {json.dumps(costs)};
        globalThis.document = {{ baseURI: "http://airflow/" }};
        globalThis.fetch = async (url) => {{
          const path = /dagRuns\\/(\\w+)\\/taskInstances(?:\\/(\\d)\\/.*return_value)?$/;
          const [, run, task] = url.pathname.match(path) ?? [];
          const of_run = (cost, number) => (
            {{ dag_id: "d", dag_run_id: run, task_id: `${{number}}`, operator: "RunInferenceOperator" }});
          return new Response(JSON.stringify(
            run === undefined
            ? {{ dag_runs: Object.keys(costs).map((id) => ({{ dag_run_id: id, state: "success" }})) }}
            : task === undefined ? {{ task_instances: costs[run].map(of_run), total_entries: costs[run].length }}
            : {{ value: {{ rows: {{ answered: 1 }}, cost_usd: costs[run][task], budget_left_usd: 4 }} }}));
        }};
        const slots = [];
        let next;
        const createElement = (type, props, ...children) =>
          typeof type === "function" ? type(props) : {{ type, children: children.flat(9) }};
        const useState = (initial) => {{
          const slot = next++;
          slots[slot] ??= [initial];
          return [slots[slot][0], (found) => {{ slots[slot] = [found]; }}];
        }};
        const useEffect = (effect) => {{ const slot = next++; slots[slot] ??= [effect()]; }};
        globalThis.React = {{ createElement, useState, useEffect }};
        await import("./history.js");
        const render = () => {{ next = 0; return globalThis.AirflowPlugin({{ dagId: "d" }}); }};
        render();
        while (!slots[0][0].history) await new Promise((resolve) => setTimeout(resolve, 5));
        const texts = (node) => node?.children?.flatMap(texts) ?? (typeof node === "string" ? [node] : []);
        console.log(JSON.stringify(texts(render())));
    """)
    node, _ = compute_driver_executable()
    found = subprocess.run([node, tmp_path / "page.js"], capture_output=True, text=True, check=True)
    texts = json.loads(found.stdout)
    cost = "at least $1.20"
    assert {f"some: {cost}", "all: $1.50", "none: –"} <= {*texts}
    assert any(
        text.startswith("Sum of 3 runs: at least $2.70 · ")
        and text.endswith(" · $4.00 of the shared budget were left")
        for text in texts
    )
    of_runs = [texts[texts.index("success", texts.index(name)) + 1] for name in costs]
    assert of_runs == [cost, "$1.50", "–"]


def shown_page(directory: Path, xcom: Any) -> list[Any]:
    """Returns the texts and the frames that the page of a task shows for an XCom."""
    for name in ("airflow.js", "inference.js"):
        (directory / name).write_bytes(AIRFLOW_JS.with_name(name).read_bytes())
    (directory / "package.json").write_text('{"type": "module"}')
    (directory / "page.js").write_text(f"""
        const task = {{ dag_id: "d", dag_run_id: "r", task_id: "t", map_index: -1, state: "success",
          operator: "RunInferenceOperator" }};
        const documentElement = {{ classList: {{ contains() {{}} }} }};
        globalThis.document = {{ baseURI: "http://airflow/", documentElement }};
        globalThis.fetch = async (url) => new Response(JSON.stringify(
          url.pathname.endsWith("llmbeam_page") ? {{ value: {json.dumps(xcom)} }}
          : {{ task_instances: [task], total_entries: 1 }}));
        let state = {{}};
        const createElement = (type, props, ...children) =>
          typeof type === "function" ? type(props) : type === "iframe" ? props : {{ children: children.flat(9) }};
        const set = (found) => {{ state = typeof found === "function" ? found(state) : found; }};
        const useState = () => [state, set];
        let hasRun = false;
        const useEffect = (effect) => {{ if (!hasRun) {{ hasRun = true; effect(); }} }};
        globalThis.React = {{ createElement, useState, useEffect }};
        await import("./inference.js");
        const props = {{ dagId: "d", runId: "r", taskId: "t" }};
        globalThis.AirflowPlugin(props);
        while (!state.tasks && !state.error) await new Promise((resolve) => setTimeout(resolve, 5));
        const shown = (node) => node?.children?.flatMap(shown) ?? (node ? [node] : []);
        console.log(JSON.stringify(shown(globalThis.AirflowPlugin(props))));
        process.exit(0);
    """)
    node, _ = compute_driver_executable()
    found = subprocess.run([node, directory / "page.js"], capture_output=True, text=True, check=True)
    shown: list[Any] = json.loads(found.stdout)
    return shown


def test_a_page_that_somebody_else_stored_loads_nothing_from_anywhere(tmp_path):
    html = "<!doctype html><img src='https://evil.example/x.png'><p>a report"
    (frame,) = shown_page(tmp_path, encode_page(html, "gs://out/report.html"))
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    assert (frame["sandbox"], frame["csp"]) == ("", policy)
    assert frame["srcDoc"].removesuffix(html) == (
        f'<!doctype html><meta http-equiv="Content-Security-Policy" content="{policy}">'
    )
    assert policy in REPORT_PAGE.read_text(), "as the report has it itself"


@pytest.mark.parametrize(
    "stored",
    [
        {"html_gzip": base64.b64encode(gzip.compress(bytes(30 * 2**20))).decode()},
        {"html_gzip": "A" * (MAX_BYTES + 1)},
        {"html_gzip": "no Base64"},
        {"html_gzip": base64.b64encode(b"no gzip").decode()},
        {"html_gzip": ["<p>"]},
        {"html": "<p>a page that is not compressed"},
    ],
    ids=["bomb", "too long", "no Base64", "no gzip", "a list", "no page"],
)
def test_a_page_that_no_operator_stores_is_named_by_its_address_alone(tmp_path, stored):
    (text,) = shown_page(tmp_path, {"uri": "gs://out/\u202er.html", **stored})
    assert text == "The report is too large for this page, or is none. It is in gs://out/\ufffdr.html."


@pytest.mark.parametrize("stored", [7, "x", [], {"uri": {"toString": 1}}], ids=str)
def test_an_xcom_that_is_no_page_breaks_no_page(tmp_path, stored):
    (text,) = shown_page(tmp_path, stored)
    assert text.startswith("The report is too large for this page, or is none.")


def test_the_script_of_the_plugin_reads_that_xcom():
    script = Path(airflow_provider_llmbeam.integrations.plugin.__file__).parent / "static" / "inference.js"
    assert f'readXCom(task, "{PAGE_KEY}")' in script.read_text()


def test_the_last_lines_of_a_run_name_the_kinds_of_failed_rows_and_the_time_of_batch_inference():
    report = {
        "batch_began_at": 1000.0,
        "finished_at": 8800.0,
        "origins": {"batch": 1200, "fresh": 3},
        "dead_letter_by_kind": {"blocked": 7, "media_error": 30},
        "dead_letter_uri": "gs://out/dead_letter.jsonl",
    }
    assert [*closing_lines(report)] == [
        "Batch inference: 1,200 rows answered, 2 h 10 min from the request files to the report.",
        "37 failed: 30 media_error, 7 blocked. Dead letter: gs://out/dead_letter.jsonl",
    ]
    assert [*closing_lines({**report, "batch_began_at": None, "dead_letter_by_kind": {}})] == []
