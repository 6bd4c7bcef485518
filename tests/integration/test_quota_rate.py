"""A job that shares its quota with other traffic: at the recommended rate and at the whole quota."""

from __future__ import annotations

import json
import threading
import time

import pytest
import requests

from airflow_provider_llmbeam.sandbox import Latency, ModelSettings, Proxy, Quota, Sandbox
from airflow_provider_llmbeam.sensors.quota import QuotaHealthSensor
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.tasks.process import JobProcess
from tests.clouds import use_environment

pytestmark = pytest.mark.slow

QUOTA = 3000
NEIGHBOURS = 0.4 * QUOTA
ROWS = 700
MODEL = "gemini-2.5-flash"


class Log:
    def log(self, level, event, *args):
        print(event % args)

    def info(self, event, *args):
        print(event % args)

    warning = info


class Task:
    def __init__(self):
        self.pushed = {}

    def xcom_push(self, key, value):
        self.pushed[key] = value


@pytest.fixture
def cloud(monkeypatch):
    """A sandbox with a quota of which other traffic uses two fifths, before and during the test."""
    latency = Latency(mean_seconds=0.2)
    with (
        Sandbox(models=ModelSettings(quota=Quota(requests_per_minute=QUOTA), latency=latency)) as sandbox,
        Proxy(sandbox) as proxy,
    ):
        use_environment(monkeypatch, proxy.environment())
        sandbox.monitoring.add_traffic(MODEL, minutes=15, requests_per_minute=NEIGHBOURS)
        is_over = threading.Event()
        threads = [
            threading.Thread(target=neighbour, args=(sandbox.url, proxy.project, is_over, number), daemon=True)
            for number in range(8)
        ]
        for thread in threads:
            thread.start()
        yield sandbox, proxy.project
        is_over.set()
        for thread in threads:
            thread.join()


def neighbour(url, project, is_over, number):
    """One of eight threads that together send requests at a steady rate."""
    path = f"/v1/projects/{project}/locations/global/publishers/google/models/{MODEL}:generateContent"
    gap = 8 * 60 / NEIGHBOURS
    due = time.monotonic() + number * gap / 8
    with requests.Session() as session:
        session.trust_env = False
        while not is_over.wait(max(0.0, due - time.monotonic())):
            body = {"contents": [{"role": "user", "parts": [{"text": f"neighbour {number} {due}"}]}]}
            session.post(url + path, json=body, headers={"Authorization": "Bearer t"}, timeout=30)
            due = max(due + gap, time.monotonic())  # a late thread sends less, and not in a burst


@pytest.mark.timeout(180)
def test_requests_are_rarely_rejected_at_the_recommended_rate_and_often_at_the_whole_quota(cloud, tmp_path):
    sandbox, project = cloud
    known = {"requests_per_minute": QUOTA, "max_in_flight": 64}
    gate = QuotaHealthSensor(
        task_id="gate",
        model={"type": "gemini", "name": MODEL, "project": project},
        demand={"rows": ROWS, "input_tokens_per_row": 10, "output_tokens_per_row": 10},
        window=3600,
        limits=known,
    )
    task = Task()
    found = gate.execute({"ti": task})
    assert found["verdict"] == "healthy"
    assert found["requests_per_minute"] == pytest.approx(0.95 * 0.6 * QUOTA, abs=1)
    shares, rejected = {}, {}
    for name, limits in (("recommended", task.pushed["limits"]), ("whole quota", known)):
        before = rejections(sandbox)
        report = run(tmp_path / name.replace(" ", "_"), task.pushed["model"], limits)
        assert report["rows"] == {"read": ROWS, "answered": ROWS, "dead_letter": 0}
        sent, own = report["requests"]["sent"], report["requests"]["rejected"]
        shares[name], rejected[name] = own / sent, rejections(sandbox) - before
        print(f"{name}: {limits['requests_per_minute']:.0f}/min allowed, {own} of {sent} rejected")
        print(f"{name}: {rejected[name] - own} of the neighbour's rejected")
    assert shares["recommended"] <= 0.01
    assert rejected["whole quota"] > 3 * rejected["recommended"]


def rejections(sandbox):
    return sandbox.stats()["methods"]["gemini.generateContent"]["by_http_status"].get("429", 0)


def run(directory, model, limits):
    directory.mkdir()
    rows = "".join(
        json.dumps({"id": number, "text": f"{directory.name} {number}"}) + "\n" for number in range(ROWS)
    )
    (directory / "in.jsonl").write_text(rows)
    spec = JobSpec.parse(
        {
            "name": directory.name,
            "source": {"uri": f"{directory}/in.jsonl", "key": ["id"]},
            "prompt": {"template": "{{ row.text }}"},
            "model": model,
            "limits": limits,
            "sink": {"uri": f"{directory}/out"},
        }
    )
    return JobProcess(spec, {}, Log()).run()
