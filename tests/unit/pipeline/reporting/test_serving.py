"""The GPUs of an endpoint in the report: idle minutes, queue, what follows; a service that does not answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from llmbeam_sandbox import Fault, ManualClock, Proxy, Sandbox

from airflow_provider_llmbeam.pipeline.elements import AnsweredRow
from airflow_provider_llmbeam.pipeline.reporting import serving
from airflow_provider_llmbeam.pipeline.reporting.build_report import build_report
from airflow_provider_llmbeam.pipeline.reporting.page import render_page
from airflow_provider_llmbeam.pipeline.reporting.report import Report
from airflow_provider_llmbeam.pipeline.reporting.serving import Minutes, add_serving, describe
from airflow_provider_llmbeam.pipeline.transforms.account import TallyRows
from airflow_provider_llmbeam.spec import JobSpec, VertexEndpointModel
from airflow_provider_llmbeam.transport.monitoring import PREDICTION, WAITING
from airflow_provider_llmbeam.transport.monitoring import Series as TimeSeries
from tests.clouds import use_environment
from tests.outcomes import completion

ENDPOINT = "projects/acme/locations/us-central1/endpoints/e"


def minutes(busy: list[float], replicas: float = 1, waiting: float | None = None) -> Minutes:
    times = [60.0 * (index + 1) for index in range(len(busy))]
    queue = {} if waiting is None else dict.fromkeys(times, waiting)
    return Minutes(dict(zip(times, busy, strict=True)), dict.fromkeys(times, replicas), queue)


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (minutes([0.85] * 12, replicas=2), "4 of 24 GPU minutes were idle."),
        (minutes([0.3] * 12, replicas=2), "17 of 24 GPU minutes were idle: scale to 1 replica."),
        (minutes([0.5] * 6, replicas=4), "12 of 24 GPU minutes were idle: scale to 3 replicas."),
        (
            minutes([0.7] * 24),
            "7 of 24 GPU minutes were idle: scale to a smaller GPU, or send more requests at a time "
            "(limits.max_in_flight), as 1 replica is needed.",
        ),
        (
            minutes([0.95] * 24, waiting=12),
            "1 of 24 GPU minutes were idle, and 12 requests waited in its queue: scale to 2 replicas to finish "
            "earlier, for about the same GPU minutes.",
        ),
        (minutes([0.95] * 24, waiting=0), "1 of 24 GPU minutes were idle."),
        (minutes([]), "0 of 0 GPU minutes were idle."),
    ],
)
def test_idle_gpu_minutes_say_how_many_replicas_are_enough(found: Minutes, sentence: str) -> None:
    assert describe(found) == sentence


MODEL = VertexEndpointModel.parse(
    {
        "type": "vertex_endpoint",
        "name": "moods@3",
        "endpoint": ENDPOINT,
        "deployed_models": {"1": "moods@3", "2": "moods@4"},
    }
)
#: Points by metric, and by the labels of each series: 12 minutes.
POINTS: dict[str, dict[tuple[str, ...], float]] = {
    f"{PREDICTION}/accelerator/duty_cycle": {("1",): 0.9, ("2",): 0.25},
    f"{PREDICTION}/replicas": {("1",): 2.0, ("2",): 1.0},
    f"{PREDICTION}/response_count": {("1", "2xx"): 90.0, ("2", "2xx"): 8.0, ("2", "5xx"): 2.0},
    WAITING: {("1",): 3.0},
}


def answer(params: Mapping[str, Any]) -> Iterable[TimeSeries]:
    """Answers as Cloud Monitoring does."""
    metric = params["filter"].split('"')[1]
    names = [each.rpartition(".")[2] for each in params["aggregation.groupByFields"]]
    assert 'endpoint_id = "e"' in params["filter"]
    assert names[0] == "deployed_model_id"
    for labels, value in POINTS[metric].items():
        points = tuple((1000.0 + 60 * minute, value) for minute in range(12, 0, -1))
        yield TimeSeries(dict(zip(names, labels, strict=True)), points)


@pytest.fixture
def manual_clock() -> ManualClock:
    return ManualClock(1_700_000_040.0)


@pytest.fixture
def report(job: Any) -> Report:
    spec: JobSpec = job()
    step = TallyRows((128, 512), ("id",))
    for number in range(3):
        row = completion(sent_at=1000.0, answered_at=1000.0 + 300 * number)
        step.process(AnsweredRow({"id": number}, f"{number:064}", row, "fresh"))
    step.tally.read = 3
    return build_report(
        spec,
        tally=step.tally,
        answers_uris=[],
        dead_letter_uri="out/dead",
        report_uri="out/report.json",
        report_html_uri="out/report.html",
        started_at=1000.0,
        finished_at=1720.0,
    )


def test_the_report_counts_two_deployed_models_apart_and_its_page_shows_them(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_open", lambda model: answer)
    found = add_serving(report, MODEL)
    assert found.serving is not None
    one, two = found.serving.models["1"], found.serving.models["2"]
    assert (one.name, one.responses, one.failed, one.waiting) == ("moods@3", 1080, 0, 3.0)
    assert (one.gpu_minutes, one.idle_minutes) == (24.0, 2.4)
    assert (two.name, two.responses, two.failed, two.waiting) == ("moods@4", 120, 24, None)
    assert (two.gpu_minutes, two.idle_minutes) == (12.0, 9.0)
    assert found.serving.sentences[1].startswith("moods@4: 9 of 12 GPU minutes were idle: scale to a smaller GPU")
    assert found.series is not None
    assert set(found.series.gpu_busy) - {None} == {round((2 * 0.9 + 0.25) / 3, 3)}, "weighted by the replicas"
    page = render_page(found)
    assert "9 of 12 GPU minutes were idle" in page
    assert "GPUs busy, in percent" in page
    assert "GPUs of the endpoint" not in render_page(report)


def test_the_figures_are_read_from_cloud_monitoring(
    report: Report, monkeypatch: pytest.MonkeyPatch, manual_clock: ManualClock
) -> None:
    """Requests and replies are checked against the Discovery document."""
    with Sandbox(clock=manual_clock) as sandbox, Proxy(sandbox) as proxy:
        use_environment(monkeypatch, proxy.environment())
        manual_clock.advance(3_600)
        now = manual_clock()
        for name, value in {"accelerator/duty_cycle": 0.4, "replicas": 2, WAITING: 5}.items():
            sandbox.monitoring.set_gauge(name, value, endpoint="e")
        run = report.model_copy(update={"started_at": now - 1_200, "finished_at": now, "series": None})
        model = MODEL.model_copy(update={"endpoint": ENDPOINT.replace("acme", "llmbeam-sandbox")})
        found = add_serving(run, model).serving
        assert found is not None
        (one,) = found.models.values()
        assert (one.name, one.waiting, one.responses) == ("moods@3", 5.0, 0)
        assert one.idle_minutes == pytest.approx(0.6 * one.gpu_minutes, abs=0.1)
        assert 24 <= one.gpu_minutes <= 36, "20 minutes of 2 replicas, without the last 3"
        assert now - found.until >= 120
        sandbox.faults.every("monitoring.timeSeries.list", 1, Fault(kind="error", http_status=403))
        assert add_serving(run, model).serving is None


def test_a_report_without_figures_of_the_gpus_says_why_in_the_log_alone(
    report: Report, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(params: Mapping[str, Any]) -> Iterable[TimeSeries]:
        raise ValueError("HTTP 403: monitoring.timeSeries.list denied")

    monkeypatch.setattr(serving, "_open", lambda model: refuse)
    assert add_serving(report, MODEL) == report
    assert "no figures of the GPUs of projects/acme" in caplog.text
    monkeypatch.setattr(serving, "_open", lambda model: lambda params: ())
    assert add_serving(report, MODEL) == report, "Cloud Monitoring has no minute yet"
