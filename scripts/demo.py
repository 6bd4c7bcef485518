"""Runs `dags/nightly_enrichment.py` once on a real Airflow, against the sandbox or a server of your own."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import sessions
from local_airflow import UNFINISHED, LocalAirflow, end_process_group, local_airflow

ROOT = Path(__file__).resolve().parent.parent
DAG_ID, TASK_ID = "nightly_enrichment", "enrich"
#: Requests per minute of the sandbox; the Dag's own limit is the same.
REQUESTS_PER_MINUTE = 600


def main() -> int:
    """Returns 0 when the run succeeded."""
    options = _parser().parse_args()
    home = options.home.resolve()
    shutil.rmtree(home, ignore_errors=True)
    with ExitStack() as stack:
        if options.model_url:
            url, conf = options.model_url.rstrip("/"), _served_model(options.model_url, options.model_name)
            fact("Model server", f"{url} ({conf['model_name']})")
        else:
            url, conf = stack.enter_context(sandbox()), {}
            fact("Sandbox", f"{url} (emulated Gemini API, {REQUESTS_PER_MINUTE} requests/min)")
        airflow = stack.enter_context(local_airflow(home / "airflow", ROOT / "dags", _environment(home, url)))
        fact("Airflow", f"{airflow.url} (no login)")
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        run_id = airflow.trigger(DAG_ID, conf, today.isoformat())
        fact("Run", f"{run_id} of dags/{DAG_ID}.py\n")
        state = follow(airflow, run_id)
        if state == "success":
            print()
            show(airflow.xcom(DAG_ID, run_id, TASK_ID), made_up=not options.model_url)
            fact("UI", f"{airflow.url}/dags/{DAG_ID}/runs/{run_id}/plugin/inference-run")
            if not options.keep:
                print(f"{'':14} (ends now; scripts/demo --keep leaves it up)")
        else:
            print(f"The run is {state}. See {airflow.url}/dags/{DAG_ID}/runs/{run_id} (with --keep).")
        if options.keep:
            print("\nEverything stays up; Ctrl-C ends it.", flush=True)
            signal.pause()
    return 0 if state == "success" else 1


def follow(airflow: LocalAirflow, run_id: str) -> str:
    """Prints the progress of the tasks until the run ends; returns its state."""
    shown = 0
    states: dict[str, str] = {}
    while True:
        state = airflow.run_state(DAG_ID, run_id)
        for task_id in ("extract", TASK_ID):
            now = airflow.task(DAG_ID, run_id, task_id)["state"] or "waiting"
            if states.get(task_id) != now:
                states[task_id] = now
                print(f"  {task_id:8} {now}", flush=True)
        if states[TASK_ID] not in ("waiting", "scheduled", "queued"):
            lines = [line for line in airflow.log_lines(DAG_ID, run_id, TASK_ID) if " rows/s" in line]
            for line in lines[shown:]:
                print(f"  {TASK_ID:8} {line}", flush=True)
            shown = max(shown, len(lines))
        if state not in UNFINISHED:
            return state
        time.sleep(1)


def show(manifest: dict[str, Any], *, made_up: bool) -> None:
    """Prints the results."""
    rows, requests, tokens = manifest["rows"], manifest["requests"], manifest["tokens"]
    fact("Rows", f"{rows['read']} = {rows['answered']} answered + {rows['dead_letter']} in the dead letter")
    fact("Origins", ", ".join(f"{count} {origin}" for origin, count in manifest["origins"].items()))
    fact("Requests", f"{requests['sent']} sent, {requests['rejected']} × 429, {requests['retried']} retried")
    if requests["per_minute"]:
        fact("Rate", f"{requests['per_minute']:.0f} requests/min = {requests['quota_ratio']:.0%} of the quota")
    fact("Tokens", f"{tokens['input']:,} in, {tokens['output']:,} out")
    fact("Time", f"{manifest['duration_seconds']:.0f} s, start of Beam included")
    print("\nThree answers" + (" (the sandbox makes them up; --model-url asks a real model)" if made_up else ""))
    for answer in _three(Path(manifest["answers_uris"][0])):
        words = f"{answer['package']}: {json.dumps(answer['answer'], ensure_ascii=False)}"
        print(textwrap.fill(words, 100, initial_indent="  ", subsequent_indent="    "))
    print()
    fact("Answers", manifest["answers_uris"][0])
    fact("Dead letter", manifest["dead_letter_uri"])
    fact("Report", manifest["report_html_uri"])


def fact(name: str, value: str) -> None:
    """Prints a line of the summary."""
    print(f"{name:14} {value}", flush=True)


@contextmanager
def sandbox() -> Iterator[str]:
    """Runs the emulated model APIs; yields their address."""
    with tempfile.TemporaryDirectory() as directory:
        ready = Path(directory, "ready.json")
        command = [
            sys.executable,
            "-m",
            "llmbeam_sandbox",
            "--port=0",
            f"--ready-file={ready}",
        ]
        quota = [
            f"--requests-per-minute={REQUESTS_PER_MINUTE}",
            "--latency-seconds=1.0",
            "--latency-sigma=0.5",
        ]
        process = sessions.start([*command, *quota], stdout=subprocess.DEVNULL)
        try:
            while not ready.exists():
                if process.poll() is not None:
                    raise RuntimeError(f"The sandbox ended with exit code {process.returncode}.")
                time.sleep(0.05)
            yield json.loads(ready.read_text())["url"]
        finally:
            end_process_group(process)


def _environment(home: Path, model_url: str) -> dict[str, str]:
    connection = {
        "conn_type": "llmbeam",
        "host": model_url,
        "password": os.environ.get("LLMBEAM_API_KEY", "demo-key"),
    }
    return {"LLMBEAM_DATA": str(home / "data"), "AIRFLOW_CONN_LLMBEAM_DEFAULT": json.dumps(connection)}


def _served_model(url: str, name: str | None) -> dict[str, str]:
    if name is None:
        models = httpx.get(f"{url.rstrip('/')}/models", timeout=10).raise_for_status().json()["data"]
        name = models[0]["id"]
    return {"model_type": "openai", "model_name": str(name)}


def _three(path: Path) -> list[dict[str, Any]]:
    with path.open() as lines:
        answers = [json.loads(line) for line in lines]
    return answers[:: max(1, len(answers) // 3)][:3]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave Airflow and the sandbox running at the end")
    parser.add_argument("--home", type=Path, default=ROOT / ".demo", help="made anew; everything lies below it")
    parser.add_argument("--model-url", help="a real OpenAI-compatible server, e.g. http://127.0.0.1:8000/v1")
    parser.add_argument("--model-name", help="the model to ask for there; by default the first it lists")
    parser.add_argument("--stream", action="store_true", help="show the stream worker instead, with Kafka")
    return parser


def stop(*_: object) -> None:
    """Ends the demo like Ctrl-C, so that all processes that it started end too."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("Stopped; nothing is left running.")
