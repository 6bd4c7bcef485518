"""Verdicts in each situation, with the real hook and the Monitoring, quotas and models of the sandbox."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from llmbeam_sandbox import (
    EndpointSettings,
    Fault,
    Latency,
    ManualClock,
    ModelSettings,
    Proxy,
    Quota,
    Sandbox,
)

from airflow_provider_llmbeam.exceptions import AccessDeniedError
from airflow_provider_llmbeam.hooks.google.authentication import ModelAuthentication
from airflow_provider_llmbeam.hooks.probe import Prober
from airflow_provider_llmbeam.quota.hook import QuotaHook, situation_of, unit_of
from airflow_provider_llmbeam.spec import CloudRunEndpoint, Limits, VertexEndpoint, VertexEndpointModel
from airflow_provider_llmbeam.spec.model import parse_model
from airflow_provider_llmbeam.spec.quota_question import QuotaQuestion
from airflow_provider_llmbeam.transport.monitoring import WAITING
from tests.clouds import use_environment

NOW = 1_700_000_040.0
PROJECT = "llmbeam-sandbox"
POOLED = {"type": "gemini", "name": "gemini-2.5-flash", "project": PROJECT}
FIXED = {"type": "gemini", "name": "gemini-embedding-001", "project": PROJECT, "location": "us-central1"}
DEVELOPER = {"type": "gemini", "name": "gemini-2.5-flash"}
PLACE = f"projects/{PROJECT}/locations/us-central1"
ENDPOINT = {"type": "vertex_endpoint", "name": "google/gemma", "endpoint": f"{PLACE}/endpoints/77"}
GPU = {
    "type": "vertex",
    "model": "google/gemma-3-4b-it",
    "machine_type": "g2-standard-24",
    "locations": ["us-central1"],
    "hf_token_secret": f"projects/{PROJECT}/secrets/hf/versions/1",
}
DENIED = Fault(kind="error", http_status=403)


@dataclass(frozen=True)
class Situation:
    """The state of the cloud and the expected verdict.

    `before` and `arrange` get the sandbox, two hours before and now; `words` are in the sentence; `rate` is
    recommended, of requests or tokens per minute.
    """

    name: str
    target: dict[str, Any]
    verdict: str
    words: tuple[str, ...]
    arrange: Callable[[Any], object] = lambda sandbox: None
    before: Callable[[Any], object] = lambda sandbox: None
    probes: int = 0
    rate: float | None = None
    limits: dict[str, Any] = field(default_factory=dict)
    sandbox: dict[str, Any] = field(default_factory=dict)


def traffic(model="gemini-2.5-flash", location="global", minutes=60, **per_minute):
    return lambda sandbox: sandbox.monitoring.add_traffic(
        model, location=location, minutes=minutes, **{"requests_per_minute": 60, **per_minute}
    )


def both(*arranged):
    return lambda sandbox: [each(sandbox) for each in arranged]


def faults(method, *queued):
    return lambda sandbox: [sandbox.faults.queue(method, each) for each in queued]


def always(method, fault):
    return lambda sandbox: sandbox.faults.every(method, 1, fault)


def hidden(metric):
    return lambda sandbox: sandbox.monitoring.hide(metric)


def provisioned(sandbox):
    sandbox.monitoring.provision("gemini-2.5-flash", tokens_per_second=1000)


LIMITED = {"models": ModelSettings(quota=Quota(requests_per_minute=600))}
REJECTED = Fault(kind="rate-limit")

SITUATIONS = [
    Situation("pool: no metrics, no probe", POOLED, "unknown", ("shows no request", "no evidence")),
    Situation("pool: no metrics, all probe requests answered", POOLED, "healthy", ("8 were answered",), probes=8),
    Situation("pool: nobody rejected", POOLED, "healthy", ("Of 600 requests", "0.0% were rejected"), traffic()),
    Situation(
        "pool: one in twenty rejected",
        POOLED,
        "degraded",
        ("5.0% were rejected",),
        traffic(requests_per_minute=95, rejected_per_minute=5),
        rate=95,
    ),
    Situation(
        "pool: nine in ten rejected",
        POOLED,
        "exhausted",
        ("90.0% were rejected",),
        traffic(requests_per_minute=10, rejected_per_minute=90),
    ),
    Situation(
        "pool: metrics stale",
        POOLED,
        "unknown",
        ("shows no request",),
        lambda sandbox: sandbox.monitoring.add_traffic(
            "gemini-2.5-flash", minutes=30, until=NOW - 3000, requests_per_minute=60
        ),
    ),
    Situation(
        "pool: metrics with a gap where now is",
        POOLED,
        "unknown",
        ("no evidence",),
        both(traffic(), hidden("model_invocation")),
    ),
    Situation(
        "pool: too few to judge",
        POOLED,
        "unknown",
        ("too few to judge",),
        traffic(minutes=8, requests_per_minute=1),
    ),
    Situation(
        "pool: healthy metrics, all probe requests rejected",
        POOLED,
        "exhausted",
        ("0.0% were rejected", "requests, 0 were answered, 3 rejected"),
        both(traffic(), faults("gemini.generateContent", *[REJECTED] * 3)),
        probes=8,
    ),
    Situation(
        "pool: exhausted metrics, all probe requests answered",
        POOLED,
        "degraded",
        ("90.0% were rejected", "8 were answered"),
        traffic(requests_per_minute=10, rejected_per_minute=90),
        probes=8,
    ),
    Situation(
        "pool: half of the probe requests rejected",
        POOLED,
        "degraded",
        ("4 were answered, 4 rejected",),
        lambda sandbox: sandbox.faults.every("gemini.generateContent", 2, REJECTED),
        probes=8,
    ),
    Situation(
        "pool: all probe requests failed",
        POOLED,
        "unknown",
        ("all failed", "HTTP 503"),
        faults("gemini.generateContent", *[Fault(kind="error", http_status=503)] * 3),
        probes=8,
    ),
    Situation(
        "pool: first tokens late",
        POOLED,
        "degraded",
        ("first token takes", "were usual the day before"),
        both(
            lambda sandbox: sandbox.monitoring.add_traffic(
                "gemini-2.5-flash", minutes=300, until=NOW - 3600, requests_per_minute=60, first_token_seconds=0.5
            ),
            traffic(minutes=20, first_token_seconds=6.0),
        ),
    ),
    Situation(
        "pool: probe requests are answered slowly",
        POOLED,
        "degraded",
        ("2 were answered in 1.", "s each, which is slow"),
        lambda sandbox: sandbox.monitoring.add_traffic(
            "gemini-2.5-flash", minutes=300, requests_per_minute=60, first_token_seconds=0.2
        ),
        probes=2,
        sandbox={"models": ModelSettings(latency=Latency(mean_seconds=1.2))},
    ),
    Situation(
        "pool: metrics may not be read, no probe",
        POOLED,
        "unknown",
        ("roles/monitoring.viewer",),
        always("monitoring.timeSeries.list", DENIED),
    ),
    Situation(
        "pool: metrics may not be read, all probe requests answered",
        POOLED,
        "healthy",
        ("roles/monitoring.viewer", "8 were answered"),
        always("monitoring.timeSeries.list", DENIED),
        probes=8,
    ),
    Situation(
        "stated limit: a neighbour uses two fifths",
        POOLED,
        "healthy",
        ("`limits` allows 600 requests per minute, of which 40% are used",),
        traffic(requests_per_minute=240),
        rate=0.95 * 360,
        limits={"requests_per_minute": 600},
    ),
    Situation(
        "provisioned throughput: half used",
        POOLED,
        "healthy",
        ("Provisioned Throughput is 1,000 tokens per second", "50% are used"),
        traffic(requests_per_minute=300, input_tokens=90, output_tokens=10, request_type="dedicated"),
        before=provisioned,
        rate=0.95 * 30_000,
    ),
    Situation(
        "provisioned throughput: spills over",
        POOLED,
        "exhausted",
        ("spilled over", "pay-as-you-go"),
        both(
            traffic(requests_per_minute=300, input_tokens=90, output_tokens=10, request_type="dedicated"),
            traffic(requests_per_minute=3, request_type="spillover"),
        ),
        before=provisioned,
        rate=0.0,
    ),
    Situation(
        "published limit: two fifths used",
        FIXED,
        "healthy",
        ("allows 600 requests per minute, of which 40% are used",),
        traffic("gemini-embedding-001", "us-central1", requests_per_minute=240),
        rate=0.95 * 360,
        sandbox=LIMITED,
    ),
    Situation(
        "published limit: used up",
        FIXED,
        "exhausted",
        ("of which 100% are used",),
        traffic("gemini-embedding-001", "us-central1", requests_per_minute=600),
        rate=0.0,
        sandbox=LIMITED,
    ),
    Situation(
        "published limit: rejections with room left",
        FIXED,
        "degraded",
        ("were rejected for it nevertheless: a burst",),
        traffic("gemini-embedding-001", "us-central1", requests_per_minute=240, rejected_per_minute=1),
        rate=0.95 * 360,
        sandbox=LIMITED,
    ),
    Situation(
        "published limit: use is not shown, no probe",
        FIXED,
        "unknown",
        ("its usage is not known",),
        lambda sandbox: sandbox.monitoring.publish_quota("gemini-embedding-001"),
        rate=600,
        sandbox=LIMITED,
    ),
    Situation(
        "published limit: Cloud Quotas may not be read, Monitoring tells the limit",
        FIXED,
        "healthy",
        ("allows 600 requests per minute, of which 40% are used", "roles/cloudquotas.viewer"),
        both(
            traffic("gemini-embedding-001", "us-central1", requests_per_minute=240),
            always("cloudquotas.quotaInfos.list", DENIED),
        ),
        rate=0.95 * 360,
        sandbox=LIMITED,
    ),
    Situation("own endpoint: nothing shown", ENDPOINT, "unknown", ("shows no data of the endpoint",)),
    Situation(
        "own endpoint: failing",
        ENDPOINT,
        "exhausted",
        ("failed (5xx)",),
        lambda sandbox: sandbox.monitoring.add_traffic(
            "", endpoint="77", location="us-central1", minutes=20, requests_per_minute=10, failed_per_minute=90
        ),
    ),
    Situation(
        "own endpoint: refusing",
        ENDPOINT,
        "degraded",
        ("0.0% failed (5xx) and 90.0% were refused (4xx)", "the metric does not show"),
        lambda sandbox: sandbox.monitoring.add_traffic(
            "", endpoint="77", location="us-central1", minutes=20, requests_per_minute=10, rejected_per_minute=90
        ),
    ),
    Situation(
        "own endpoint: requests wait in its queue",
        ENDPOINT,
        "degraded",
        ("1 of 1 replicas are up", "work 95% of the time", "12 requests wait in its queue"),
        lambda sandbox: [
            sandbox.monitoring.set_gauge(name, value, endpoint="77")
            for name, value in {
                "replicas": 1,
                "target_replicas": 1,
                "accelerator/duty_cycle": 0.95,
                WAITING: 12,
            }.items()
        ],
    ),
    Situation(
        "accelerators: two free of four, two asked for",
        GPU,
        "healthy",
        ("'custom_model_serving_nvidia_l4_gpus' allows 4", "2 asked for", "does not guarantee"),
        sandbox={"endpoints": EndpointSettings(gpu_quota={"us-central1": {"NVIDIA_L4": 4}})},
    ),
    Situation(
        "accelerators: use is not shown",
        GPU,
        "degraded",
        ("none of them is shown as used",),
        hidden("allocation/usage"),
        sandbox={"endpoints": EndpointSettings(gpu_quota={"us-central1": {"NVIDIA_L4": 4}})},
    ),
    Situation(
        "accelerators: limit too small",
        GPU,
        "exhausted",
        ("allows 1, and 2 are asked for", "waiting will not resolve this"),
        sandbox={"endpoints": EndpointSettings(gpu_quota={"us-central1": {"NVIDIA_L4": 1}})},
    ),
    Situation(
        "accelerators: limit zero",
        GPU,
        "exhausted",
        ("allows 0, and 2 are asked for",),
        sandbox={"endpoints": EndpointSettings(gpu_quota={"us-central1": {}})},
    ),
    Situation(
        "Developer API: the day is over",
        DEVELOPER,
        "exhausted",
        ("daily quota is used up",),
        probes=8,
        sandbox={"models": ModelSettings(quota=Quota(requests_per_day=1))},
    ),
    Situation("Developer API: answered", DEVELOPER, "healthy", ("8 were answered",), probes=8),
]


@pytest.fixture
def clock():
    return ManualClock(NOW - 7200)


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
def test_the_verdict_and_the_sentence_follow_from_what_the_cloud_shows(situation, clock, monkeypatch):
    with Sandbox(clock=clock, **situation.sandbox) as sandbox, Proxy(sandbox) as proxy:
        use_environment(monkeypatch, proxy.environment())
        situation.before(sandbox)
        clock.advance(7200)
        situation.arrange(sandbox)
        found = look(situation, clock)
        print(f"{situation.name:60} {found.verdict:10} {found.sentence}")
        assert found.verdict == situation.verdict, found.sentence
        for words in situation.words:
            assert words in found.sentence
        if situation.rate is not None:
            assert [*found.rates.values()] == [pytest.approx(situation.rate)]


def test_a_limit_that_is_raised_while_waiting_is_noticed(clock, monkeypatch):
    with (
        Sandbox(clock=clock, models=ModelSettings(quota=Quota(requests_per_minute=240))) as sandbox,
        Proxy(sandbox) as proxy,
    ):
        use_environment(monkeypatch, proxy.environment())
        clock.advance(7200)
        traffic("gemini-embedding-001", "us-central1", requests_per_minute=240)(sandbox)
        hook = QuotaHook(parse_model(FIXED), now=clock)
        assert hook.health("us-central1").verdict == "exhausted"
        sandbox.set_quota(Quota(requests_per_minute=960))
        clock.advance(601)  # limits are read every ten minutes
        sandbox.monitoring.add_traffic(
            "gemini-embedding-001", location="us-central1", minutes=10, requests_per_minute=240
        )
        found = hook.health("us-central1")
        assert (found.verdict, found.rates) == ("healthy", {"requests": pytest.approx(0.95 * 720)})


def test_a_quota_of_accelerators_that_may_not_be_read_is_no_evidence_to_wait_for(clock, monkeypatch):
    with Sandbox(clock=clock) as sandbox, Proxy(sandbox) as proxy:
        use_environment(monkeypatch, proxy.environment())
        sandbox.faults.every("cloudquotas.quotaInfos.list", 1, DENIED)
        with pytest.raises(AccessDeniedError, match=r"roles/cloudquotas\.viewer"):
            QuotaHook(endpoint=VertexEndpoint.parse(GPU), project=PROJECT, now=clock).health("us-central1")


def test_a_gemini_model_whose_project_is_empty_is_one_of_the_developer_api():
    model = parse_model({**DEVELOPER, "project": ""})
    assert model == parse_model(DEVELOPER)
    assert situation_of(model) == "unpublished_quota"
    assert QuotaQuestion(model=model).places == ("",)


@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        ("generate_content_requests_per_minute_per_project_per_base_model", "requests"),
        ("generate_content_input_tokens_per_minute_per_base_model", "input_tokens"),
        ("global_online_prediction_output_tokens_per_minute_per_base_model", "output_tokens"),
        ("aiplatform.googleapis.com/online_prediction_requests_per_base_model", "requests"),
        ("flex_requests_per_minute_per_project_per_base_model", None),
        ("long_running_online_prediction_requests_per_base_model", None),
        ("online_prediction_requests_per_day_per_base_model", None),
    ],
)
def test_the_metric_determines_the_unit_of_a_quota(metric, unit):
    assert unit_of(metric) == unit


def look(situation, clock):
    if situation.target["type"] in ("vertex", "cloud_run"):
        kind = VertexEndpoint if situation.target["type"] == "vertex" else CloudRunEndpoint
        endpoint = kind.parse(situation.target)
        return QuotaHook(endpoint=endpoint, project=PROJECT, now=clock).health(endpoint.locations[0])
    model = parse_model(situation.target)
    location = getattr(model, "location", "") if situation.target.get("project") else ""
    if isinstance(model, VertexEndpointModel):
        location = model.endpoint.split("/")[3]
    prober = Prober(model, authenticate=ModelAuthentication(model), now=clock, sleep=lambda seconds: None)
    probe = prober.probe(situation.probes) if situation.probes else None
    return QuotaHook(model, limits=Limits.parse(situation.limits), now=clock).health(location, probe)


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
def test_the_page_has_the_situation(situation):
    page = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "quota-verdicts.md").read_text()
    assert f"| {situation.name} | {situation.verdict} | " in page
