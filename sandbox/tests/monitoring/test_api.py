from __future__ import annotations

import json
import time
from contextlib import ExitStack, closing
from datetime import UTC, datetime

import httplib2
import httpx
import pytest
from google.api.metric_pb2 import MetricDescriptor
from google.auth.transport.requests import AuthorizedSession
from google.cloud import monitoring_v3
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError
from llmbeam_sandbox import EndpointSettings, Fault, ManualClock, ModelSettings, Quota, Sandbox

from tests.clouds import authorized

PREFIX = "aiplatform.googleapis.com/"
INVOCATIONS = f"{PREFIX}publisher/online_serving/model_invocation_count"
TOKENS = f"{PREFIX}publisher/online_serving/token_count"
FIRST_TOKEN = f"{PREFIX}publisher/online_serving/first_token_latencies"
REQUESTS = f"{PREFIX}quota/generate_content_requests_per_minute_per_project_per_base_model"
INPUT = f"{PREFIX}quota/generate_content_input_tokens_per_minute_per_base_model"
EMBEDDINGS = f"{PREFIX}quota/online_prediction_requests_per_base_model"
RUNTIME = "serviceruntime.googleapis.com/quota"
FLASH, OLD = "gemini-2.5-flash", "gemini-1.5-flash-002"
METHOD = "monitoring.timeSeries.list"
DELAY = 180
# A whole minute, and a whole number of 6 h.
NOON = 1_700_049_600.0
L4 = {"machineType": "g2-standard-12", "acceleratorType": "NVIDIA_L4", "acceleratorCount": 1}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON + 20)


@pytest.fixture
def cloud(clock):
    with Sandbox(clock=clock, models=ModelSettings(quota=Quota(requests_per_minute=60))) as running:
        yield running
        running.faults.assert_all_consumed()


class Metrics:
    """Queries Cloud Monitoring with Google's own client; by default, the last half hour."""

    def __init__(self, sandbox, clock):
        self._clock = clock
        options, http = {"api_endpoint": sandbox.url}, httplib2.Http(timeout=60)
        self._service = build("monitoring", "v3", cache_discovery=False, client_options=options, http=http)
        self.close = self._service.close

    def pages(self, metric="", *, where="", start=None, end=None, text=None, **options):
        end = self._clock() if end is None else end
        series = self._service.projects().timeSeries()
        request = series.list(
            name="projects/p",
            filter=f'metric.type = "{metric}"{where}' if text is None else text,
            interval_startTime=utc(end - 1800 if start is None else start),
            interval_endTime=utc(end),
            **options,
        )
        while request is not None:
            reply = request.execute()
            yield reply
            request = series.list_next(request, reply)

    def list(self, metric="", **options):
        replies = [
            monitoring_v3.ListTimeSeriesResponse.from_json(json.dumps(one))
            for one in self.pages(metric, **options)
        ]
        return [series for reply in replies for series in reply.time_series]

    def counts(self, metric, **options):
        """Returns the sum of each series, by the non-empty values of its labels."""
        return {
            tuple(value for _, value in sorted(one.metric.labels.items()) if value): sum(values(one))
            for one in self.list(metric, **options)
        }

    def aligned(self, metric, aligner, seconds=60, **options):
        aggregation = {"aggregation_alignmentPeriod": f"{seconds}s", "aggregation_perSeriesAligner": aligner}
        return self.list(metric, **aggregation, **options)


@pytest.fixture
def metrics_of(clock):
    with ExitStack() as stack:
        yield lambda sandbox: stack.enter_context(closing(Metrics(sandbox, clock)))


@pytest.fixture
def metrics(cloud, metrics_of):
    return metrics_of(cloud)


def utc(seconds):
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def values(series):
    return [point.value.int64_value or point.value.double_value for point in series.points]


def ask(sandbox, model=FLASH, location="us-central1", text="hello", project="p"):
    place = f"projects/{project}/locations/{location}/publishers/google/models/{model}"
    verb, body = "generateContent", {"contents": [{"parts": [{"text": text}]}]}
    if "embedding" in model:
        verb, body = "predict", {"instances": [{"content": text}]}
    token = {"Authorization": "Bearer t"}
    return httpx.post(f"{sandbox.url}/v1/{place}:{verb}", json=body, headers=token, timeout=60).status_code


def deploy(sandbox, location="us-central1"):
    """Deploys a model to the endpoint "7"."""
    parent = f"{sandbox.url}/v1/projects/p/locations/{location}"
    with httpx.Client(headers=authorized(sandbox), timeout=60) as http:
        container = {"imageUri": "vllm", "args": ["--model=Qwen/Qwen3-4B"]}
        model = {"model": {"displayName": "m", "containerSpec": container}}
        http.post(f"{parent}/models:upload", json=model).raise_for_status()
        made = http.get(f"{parent}/models").json()["models"][0]["name"]
        http.post(f"{parent}/endpoints?endpointId=7", json={"displayName": "e"}).raise_for_status()
        resources = {"machineSpec": L4, "minReplicaCount": 2}
        body = {"deployedModel": {"id": "1", "model": made, "dedicatedResources": resources}}
        body["trafficSplit"] = {"0": 100}
        http.post(f"{parent}/endpoints/7:deployModel", json=body).raise_for_status()


def predict(sandbox):
    url = f"{sandbox.url}/v1/projects/p/locations/us-central1/endpoints/7:predict"
    return httpx.post(
        url, json={"instances": [{"prompt": "a"}]}, headers={"Authorization": "Bearer t"}
    ).status_code


# Counts


def test_requests_to_the_sandbox_are_counted_per_minute(cloud, metrics, clock) -> None:
    assert [ask(cloud, text="hello w") for _ in range(2)] == [200, 200]
    clock.advance(120)
    assert ask(cloud) == 200
    clock.advance(DELAY + 60)
    (series,) = metrics.list(INVOCATIONS)
    assert dict(series.resource.labels) == {
        "resource_container": "p",
        "location": "us-central1",
        "publisher": "google",
        "model_user_id": FLASH,
        "model_version_id": "",
    }
    assert series.resource.type == f"{PREFIX}PublisherModel"
    assert dict(series.metric.labels) == {
        "response_code": "200",
        "error_category": "",
        "request_type": "shared",
        "method": "GenerateContent",
    }
    assert (series.metric_kind, series.value_type) == (MetricDescriptor.DELTA, MetricDescriptor.INT64)
    ends = [point.interval.end_time.timestamp() for point in series.points]
    assert ends == [NOON + 180, NOON + 60], "newest first, and none for the minute between"
    assert [point.interval.start_time.timestamp() for point in series.points] == [NOON + 120, NOON]
    assert values(series) == [1, 2]
    tokens = metrics.counts(TOKENS)
    assert tokens["shared", "input"] == 2 + 2 + 2
    assert tokens["shared", "output"] == sum(record.output_tokens for record in cloud.requests)


def test_without_traffic_there_is_no_series_at_all(metrics) -> None:
    assert list(metrics.pages(INVOCATIONS)) == [{}]


def test_a_point_is_visible_only_after_the_delay(cloud, metrics, clock) -> None:
    ask(cloud)
    clock.advance(40 + DELAY - 1)
    assert metrics.list(INVOCATIONS) == []
    clock.advance(1)
    assert sum(metrics.counts(INVOCATIONS).values()) == 1


def test_the_delay_can_be_set(clock, metrics_of) -> None:
    with Sandbox(clock=clock, monitoring_delay_seconds=0) as cloud:
        ask(cloud)
        clock.advance(39)
        metrics = metrics_of(cloud)
        assert metrics.list(INVOCATIONS) == []
        clock.advance(1)
        assert len(metrics.list(INVOCATIONS)) == 1


def test_a_negative_delay_is_refused() -> None:
    with pytest.raises(ValueError, match="`monitoring_delay_seconds` must be >= 0; got -1"):
        Sandbox(monitoring_delay_seconds=-1)


def test_each_project_has_its_own_requests(cloud, metrics, clock) -> None:
    ask(cloud, project="another")
    cloud.monitoring.add_traffic(FLASH, minutes=1, until=NOON, requests_per_minute=5)
    clock.advance(DELAY + 60)
    assert metrics.counts(INVOCATIONS, where=' AND resource.labels.location = "us-central1"') == {}
    assert sum(metrics.counts(INVOCATIONS).values()) == 5, "a neighbour is in every project"


def test_developer_paths_and_unknown_models_are_not_counted(cloud, metrics, clock) -> None:
    body = {"contents": [{"parts": [{"text": "a"}]}]}
    url = f"{cloud.url}/v1beta/models/{FLASH}:generateContent"
    assert httpx.post(url, json=body, headers={"x-goog-api-key": "k"}).status_code == 200
    assert ask(cloud, "palm") == 404
    clock.advance(DELAY + 60)
    assert metrics.list(INVOCATIONS) == []


def test_a_429_is_a_capacity_error_and_a_5xx_a_system_error(cloud, metrics, clock) -> None:
    cloud.faults.queue(
        "gemini.generateContent",
        Fault(kind="error", http_status=503),
        Fault(kind="rate-limit"),
        Fault(kind="error", http_status=400),
    )
    assert [ask(cloud, location=f"europe-west{number}") for number in range(4)] == [503, 429, 400, 200]
    assert [ask(cloud) for _ in range(4)] == [200, 200, 429, 429]
    clock.advance(DELAY + 60)
    found = metrics.aligned(
        INVOCATIONS,
        "ALIGN_SUM",
        1800,
        aggregation_crossSeriesReducer="REDUCE_SUM",
        aggregation_groupByFields=["metric.labels.error_category"],
    )
    by_category = {one.metric.labels["error_category"]: values(one)[0] for one in found}
    assert by_category == {"": 3, "user": 1, "system": 1, "capacity": 3}
    rejected = metrics.list(INVOCATIONS, where=' AND metric.labels.response_code = "429"')
    assert {one.metric.labels["error_category"] for one in rejected} == {"capacity"}


def test_the_traffic_of_a_neighbour_is_in_the_metrics_and_nowhere_else(cloud, metrics, clock) -> None:
    cloud.monitoring.add_traffic(
        FLASH,
        location="europe-west4",
        minutes=4,
        requests_per_minute=10,
        rejected_per_minute=2.5,
        failed_per_minute=1,
        input_tokens=1000,
        output_tokens=50,
    )
    clock.advance(DELAY)
    found = metrics.list(INVOCATIONS, where=' AND resource.labels.location="europe-west4"')
    by_code = {one.metric.labels["response_code"]: values(one) for one in found}
    assert by_code == {"200": [10] * 4, "429": [3, 2, 3, 2], "503": [1] * 4}
    assert found[0].points[0].interval.end_time.timestamp() == NOON, "the last whole minute before now"
    assert metrics.counts(TOKENS) == {("shared", "input"): 40_000, ("shared", "output"): 2000}
    assert len([one for one in cloud.requests if one.method != METHOD]) == 0
    assert ask(cloud) == 200, "no quota is charged"


def test_invalid_traffic_is_refused(cloud) -> None:
    add = cloud.monitoring.add_traffic
    with pytest.raises(ValueError, match="`minutes` must be >= 1"):
        add(FLASH, minutes=0, requests_per_minute=1)
    with pytest.raises(ValueError, match="rates >= 0"):
        add(FLASH, minutes=1, requests_per_minute=-1)
    with pytest.raises(ValueError, match="`request_type` must be one of shared, dedicated, spillover"):
        add(FLASH, minutes=1, requests_per_minute=1, request_type="free")


def test_a_gap_hides_points_of_some_metrics(cloud, metrics, clock) -> None:
    cloud.monitoring.add_traffic(FLASH, minutes=5, requests_per_minute=1)
    cloud.monitoring.hide("model_invocation_count", start=NOON - 180, end=NOON - 60)
    clock.advance(DELAY)
    (series,) = metrics.list(INVOCATIONS)
    assert [point.interval.end_time.timestamp() - NOON for point in series.points] == [0, -180, -240]
    assert [len(one.points) for one in metrics.list(TOKENS)] == [5, 5]
    cloud.monitoring.hide("")
    assert metrics.list(TOKENS) == []


def test_a_reset_clears_everything_that_a_test_has_set(cloud, metrics, clock) -> None:
    cloud.monitoring.add_traffic(OLD, minutes=5, requests_per_minute=1)
    cloud.monitoring.hide("token")
    cloud.monitoring.provision(FLASH, tokens_per_second=5)
    cloud.monitoring.set_gauge("replicas", 1, endpoint="7")
    cloud.set_quota(Quota(requests_per_minute=1))
    cloud.monitoring.publish_quota(FLASH)
    cloud.reset()
    clock.advance(DELAY + 600)
    names = ("prediction/online/replicas", "publisher/online_serving/dedicated_token_limit")
    for metric in (INVOCATIONS, f"{REQUESTS}/limit", *(PREFIX + name for name in names)):
        assert metrics.list(metric) == []
    assert cloud.stats()["quota"]["requests_per_minute"] == 60


# Aligners and reducers


def test_a_percentile_is_computed_from_the_distribution(cloud, metrics, clock) -> None:
    cloud.monitoring.add_traffic(FLASH, minutes=5, requests_per_minute=90, first_token_seconds=0.3)
    cloud.monitoring.add_traffic(FLASH, minutes=5, requests_per_minute=10, first_token_seconds=4.0)
    clock.advance(DELAY)
    (raw,) = metrics.list(FIRST_TOKEN)
    spread = raw.points[0].value.distribution_value
    assert (spread.count, spread.mean) == (100, pytest.approx(670))
    assert spread.sum_of_squared_deviation == pytest.approx(90 * 370**2 + 10 * 3330**2)
    found = {
        percent: values(metrics.aligned(FIRST_TOKEN, f"ALIGN_PERCENTILE_{percent}", 900)[0])
        for percent in (50, 95, 99)
    }
    assert found[50] == [pytest.approx(300, rel=0.25)]
    assert found[95] == [pytest.approx(4000, rel=0.25)]
    assert found[99][0] >= found[95][0]


def test_a_rate_is_per_second_and_a_sum_per_period(cloud, metrics, clock) -> None:
    cloud.monitoring.add_traffic(FLASH, minutes=10, requests_per_minute=30)
    clock.advance(DELAY - 20)
    end = {"end": NOON}
    (rate,) = metrics.aligned(INVOCATIONS, "ALIGN_RATE", 300, **end)
    assert (rate.metric_kind, rate.value_type) == (MetricDescriptor.GAUGE, MetricDescriptor.DOUBLE)
    assert values(rate) == [0.5, 0.5]
    assert rate.points[0].interval.start_time == rate.points[0].interval.end_time
    (total,) = metrics.aligned(INVOCATIONS, "ALIGN_DELTA", 300, **end)
    assert values(total) == [150, 150]
    assert [point.interval.start_time.timestamp() - NOON for point in total.points] == [-300, -600]
    for aligner, expected in (("ALIGN_SUM", 150), ("ALIGN_MEAN", 30.0), ("ALIGN_MAX", 30)):
        assert values(metrics.aligned(INVOCATIONS, aligner, 300, **end)[0]) == [expected] * 2


def test_series_are_reduced_to_the_requested_labels(cloud, metrics, clock) -> None:
    for location, rate in (("global", 10), ("europe-west4", 30)):
        cloud.monitoring.add_traffic(FLASH, location=location, minutes=2, requests_per_minute=rate)
        cloud.monitoring.add_traffic(OLD, location=location, minutes=2, requests_per_minute=1)
    clock.advance(DELAY)

    def reduced(reducer, *fields):
        found = metrics.aligned(
            INVOCATIONS,
            "ALIGN_SUM",
            aggregation_crossSeriesReducer=f"REDUCE_{reducer}",
            aggregation_groupByFields=list(fields),
        )
        return {frozenset(one.resource.labels.values()): values(one) for one in found}

    assert reduced("SUM") == {frozenset(): [42, 42]}
    assert reduced("MAX") == {frozenset(): [30, 30]}
    assert reduced("MEAN") == {frozenset(): [10.5, 10.5]}
    assert reduced("SUM", "resource.label.location") == {
        frozenset({"global"}): [11, 11],
        frozenset({"europe-west4"}): [31, 31],
    }
    fields = ("resource.labels.model_user_id", "resource.labels.location")
    assert reduced("SUM", *fields)[frozenset({"europe-west4", FLASH})] == [30, 30]


def test_pages_count_points_and_can_split_a_series(cloud, metrics, clock) -> None:
    for model in (FLASH, OLD):
        cloud.monitoring.add_traffic(model, minutes=3, requests_per_minute=1)
    clock.advance(DELAY)
    pages = list(metrics.pages(INVOCATIONS, pageSize=2))
    assert [[len(one["points"]) for one in page["timeSeries"]] for page in pages] == [[2], [1, 1], [2]]
    headers = list(metrics.pages(INVOCATIONS, view="HEADERS", pageSize=1))
    assert ["points" in page["timeSeries"][0] for page in headers] == [False, False]


# Quotas


def test_only_a_published_quota_has_its_three_metrics(cloud, metrics, clock) -> None:
    for model in (FLASH, OLD, "text-embedding-005"):
        assert [ask(cloud, model) for _ in range(3)] == [200, 200, 429]
    clock.advance(DELAY + 60)
    for metric, base in ((REQUESTS, "gemini-1.5-flash"), (EMBEDDINGS, "textembedding-gecko")):
        (usage,) = metrics.list(f"{metric}/usage")
        assert (usage.metric.labels["base_model"], values(usage)) == (base, [2])
        assert usage.resource.type == f"{PREFIX}Location"
        assert values(metrics.list(f"{metric}/exceeded")[0]) == [1]
        assert set(values(metrics.list(f"{metric}/limit")[0])) == {60}
    assert values(metrics.list(f"{INPUT}/usage")[0]) == [4]
    assert metrics.list(f"{INPUT}/limit") == [], "there is no such limit"
    cloud.monitoring.publish_quota(OLD, False)
    cloud.monitoring.publish_quota(FLASH)
    found = {what: metrics.list(f"{REQUESTS}/{what}") for what in ("limit", "usage", "exceeded")}
    assert {one.metric.labels["base_model"] for series in found.values() for one in series} == {FLASH}


def test_the_exceeded_metric_is_that_of_the_limit_that_rejected(clock, metrics_of) -> None:
    with Sandbox(
        clock=clock, models=ModelSettings(quota=Quota(requests_per_minute=6000, tokens_per_minute=60))
    ) as cloud:
        assert [ask(cloud, OLD) for _ in range(3)] == [200, 429, 429]
        assert [one.limit_name for one in cloud.requests] == ["", "tokens-per-minute", "tokens-per-minute"]
        clock.advance(DELAY + 60)
        metrics = metrics_of(cloud)
        assert metrics.list(f"{REQUESTS}/exceeded") == []
        assert values(metrics.list(f"{INPUT}/exceeded")[0]) == [2]


def test_limits_follow_the_quota_minute_by_minute(cloud, metrics, clock) -> None:
    assert ask(cloud, OLD) == 200
    clock.advance(100)
    cloud.set_quota(Quota(requests_per_minute=600))
    clock.advance(DELAY + 60)
    (series,) = metrics.list(f"{REQUESTS}/limit", start=NOON - 1)
    assert values(series) == [600, 600, 60, 60]
    assert series.metric_kind == MetricDescriptor.GAUGE
    (latest,) = metrics.aligned(f"{REQUESTS}/limit", "ALIGN_NEXT_OLDER", 1800)
    assert values(latest) == [600]


def test_provisioned_throughput_serves_up_to_its_limit_and_the_rest_spills_over(cloud, metrics, clock) -> None:
    limit = f"{PREFIX}publisher/online_serving/dedicated_token_limit"
    assert ask(cloud, text="a" * 40) == 200
    clock.advance(100)
    assert metrics.list(limit) == []
    cloud.monitoring.provision(FLASH, location="us-central1", tokens_per_second=1)
    assert [ask(cloud, text="a" * 100) for _ in range(2)] == [200, 200]
    clock.advance(DELAY + 60)
    found = {
        one.metric.labels["request_type"]: values(one)[0]
        for one in metrics.list(f"{PREFIX}publisher/online_serving/consumed_token_throughput")
    }
    spent = [one.input_tokens + one.output_tokens for one in cloud.requests if one.is_billed]
    assert found == dict(zip(("shared", "dedicated", "spillover"), spent, strict=True))
    assert set(values(metrics.list(limit)[0])) == {1}
    with pytest.raises(ValueError, match="`tokens_per_second` must be >= 1; got 0"):
        cloud.monitoring.provision(FLASH, tokens_per_second=0)


# Endpoints and accelerators


def test_an_endpoint_reports_its_replicas_and_responses(clock, metrics_of) -> None:
    with Sandbox(clock=clock, endpoints=EndpointSettings(warm_seconds=60)) as cloud:
        deploy(cloud)
        assert predict(cloud) == 503
        clock.advance(60)
        assert [predict(cloud) for _ in range(3)] == [200] * 3
        clock.advance(DELAY + 60)
        metrics = metrics_of(cloud)
        assert metrics.counts(f"{PREFIX}prediction/online/response_count") == {("1", "5xx"): 1, ("1", "2xx"): 3}
        assert metrics.counts(f"{PREFIX}prediction/online/error_count") == {("1",): 1}
        for name in ("replicas", "target_replicas"):
            (series,) = metrics.list(f"{PREFIX}prediction/online/{name}")
            assert dict(series.resource.labels) == {
                "resource_container": "p",
                "location": "us-central1",
                "endpoint_id": "7",
            }
            assert set(values(series)) == {2}
        (busy,) = metrics.list(f"{PREFIX}prediction/online/accelerator/duty_cycle")
        assert set(values(busy)) == {0.0}
        assert metrics.list(INVOCATIONS) == [], "that is for publishers' models"


def test_a_test_sets_what_an_endpoint_reports(cloud, metrics, clock) -> None:
    deploy(cloud)
    cloud.monitoring.set_gauge("replicas", 1, endpoint="7", since=NOON + 120)
    cloud.monitoring.set_gauge("accelerator/duty_cycle", 0.9, endpoint="8", location="europe-west4")
    cloud.monitoring.add_traffic(
        "m", endpoint="7", location="us-central1", minutes=1, requests_per_minute=0, failed_per_minute=3
    )
    clock.advance(DELAY + 160)
    (series,) = metrics.list(f"{PREFIX}prediction/online/replicas")
    assert values(series) == [1, 1, 2]
    duty = metrics.list(f"{PREFIX}prediction/online/accelerator/duty_cycle")
    assert {one.resource.labels["endpoint_id"]: set(values(one)) for one in duty} == {"7": {0.0}, "8": {0.9}}
    assert sum(metrics.counts(f"{PREFIX}prediction/online/error_count").values()) == 3
    with pytest.raises(ValueError, match="`metric` must be replicas, target_replicas"):
        cloud.monitoring.set_gauge("response_count", 1, endpoint="7")


def test_the_quota_of_accelerators_is_sampled_every_six_hours(clock, metrics_of) -> None:
    with Sandbox(clock=clock, endpoints=EndpointSettings(gpu_quota={"us-central1": {"NVIDIA_L4": 4}})) as cloud:
        deploy(cloud)
        clock.advance(3 * 3600)
        metrics = metrics_of(cloud)
        where = ' AND metric.labels.quota_metric = "aiplatform.googleapis.com/custom_model_serving_nvidia_l4_gpus"'
        assert metrics.list(f"{RUNTIME}/limit", where=where) == [], "not in the last half hour"
        (before,) = metrics.list(f"{RUNTIME}/allocation/usage", where=where, start=clock() - 86_400)
        assert set(values(before)) == {0}
        clock.advance(4 * 3600)
        (limit,) = metrics.list(f"{RUNTIME}/limit", where=where, start=clock() - 86_400)
        assert (len(limit.points), set(values(limit))) == (4, {4})
        assert limit.metric.labels["limit_name"] == "CustomModelServingL4GPUsPerProjectPerRegion"
        (usage,) = metrics.list(f"{RUNTIME}/allocation/usage", where=where, start=clock() - 86_400)
        assert values(usage) == [2, 0, 0, 0]
        assert dict(usage.resource.labels) == {
            "project_id": "p",
            "service": "aiplatform.googleapis.com",
            "location": "us-central1",
        }


# Refusals


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"text": 'resource.type = "global"'}, 'must specify a restriction on "metric.type"'),
        (
            {"text": f'metric.type = "{TOKENS}" OR metric.type = "{TOKENS}"'},
            "the sandbox emulates one metric.type",
        ),
        ({"text": f'metric.type = "{TOKENS}" AND metric.type = "{INVOCATIONS}"'}, "contradicts what is before"),
        ({"text": f'metric.type = "{TOKENS}"AND resource.type = "x"'}, "expected AND after"),
        ({"where": ' AND metric.labels.colour = "red"'}, "valid combination of metric and monitored resource"),
        ({"where": ' AND resource.type = "gce_instance"'}, "valid combination of metric and monitored resource"),
        ({"aggregation_groupByFields": "metric.labels.colour"}, "valid combination"),
        ({"aggregation_groupByFields": "colour"}, "the sandbox emulates metric.labels.X"),
        ({"aggregation_perSeriesAligner": "ALIGN_INTERPOLATE"}, "is not emulated by the sandbox"),
        ({"aggregation_perSeriesAligner": "ALIGN_PERCENTILE_95"}, "cannot be applied to metrics with kind DELTA"),
        ({"aggregation_crossSeriesReducer": "REDUCE_SUM"}, "requires a perSeriesAligner other than ALIGN_NONE"),
        (
            {"aggregation_perSeriesAligner": "ALIGN_SUM", "aggregation_crossSeriesReducer": "REDUCE_STDDEV"},
            "REDUCE_STDDEV is not emulated",
        ),
        ({"aggregation_alignmentPeriod": "30s"}, "at least 60s"),
        ({"start": NOON + 4000, "end": NOON}, "start time must not be later than the end time"),
        ({"orderBy": "x"}, "does not emulate the parameter"),
        ({"pageToken": "next"}, "Field pageToken had an invalid value"),
    ],
)
def test_an_invalid_or_unemulated_query_is_refused_with_a_message(metrics, options, words) -> None:
    with pytest.raises(HttpError) as refused:
        list(metrics.pages(TOKENS, **options))
    error = json.loads(refused.value.content)["error"]
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
    assert words in error["message"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"interval.endTime": "2026-01-01T00:00:00Z"}, "Field interval.startTime had an invalid value: it is req"),
        ({"interval.startTime": "today"}, "it must be RFC 3339"),
        ({"interval.startTime": "2026-01-01T00:00:00"}, "must have an offset"),
        (
            {"interval.startTime": utc(NOON), "interval.endTime": utc(NOON), "view": "SOME"},
            "FULL and HEADERS are known",
        ),
    ],
)
def test_an_interval_is_needed_in_rfc_3339(cloud, query, words) -> None:
    refused = httpx.get(
        f"{cloud.url}/v3/projects/p/timeSeries", params={"filter": f'metric.type="{TOKENS}"', **query}
    )
    assert refused.status_code == 400
    assert words in refused.json()["error"]["message"]


def test_an_unknown_metric_is_not_found(metrics) -> None:
    with pytest.raises(HttpError) as refused:
        metrics.list(f"{PREFIX}no/such/metric")
    assert refused.value.status_code == 404
    assert "Cannot find metric(s) that match type" in refused.value.reason


def test_a_distribution_has_no_maximum(cloud, metrics, clock) -> None:
    with pytest.raises(HttpError, match="REDUCE_MAX cannot be applied"):
        metrics.aligned(FIRST_TOKEN, "ALIGN_SUM", aggregation_crossSeriesReducer="REDUCE_MAX")


def test_a_fault_has_the_error_format_of_google(cloud, metrics) -> None:
    cloud.faults.queue(
        METHOD,
        Fault(kind="error", http_status=403),
        Fault(kind="error", http_status=403, message="Permission monitoring.timeSeries.list denied for alice."),
        Fault(kind="rate-limit"),
        Fault(kind="garbage"),
    )
    for status, words in (
        (403, "Permission monitoring.timeSeries.list denied (or the resource may not exist)."),
        (403, "denied for alice."),
        (429, "Time series queries per minute"),
    ):
        with pytest.raises(HttpError) as refused:
            metrics.list(TOKENS)
        assert refused.value.status_code == status
        assert words in refused.value.reason
    page = next(metrics.pages(TOKENS))
    assert page.startswith("<!DOCTYPE html>"), "Google's client hands on what is no JSON"
    assert metrics.list(TOKENS) == []


def test_the_google_host_reaches_the_sandbox_through_the_proxy(sandbox, google) -> None:
    import google.auth

    sandbox.monitoring.add_traffic(FLASH, minutes=10, requests_per_minute=6)
    credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/monitoring.read"])
    now = time.time()
    with AuthorizedSession(credentials) as session:
        reply = session.get(
            "https://monitoring.googleapis.com/v3/projects/p/timeSeries",
            params={
                "filter": f'metric.type = "{INVOCATIONS}"',
                "interval.startTime": utc(now - 900),
                "interval.endTime": utc(now),
                "aggregation.alignmentPeriod": "900s",
                "aggregation.perSeriesAligner": "ALIGN_SUM",
            },
        )
    (series,) = reply.json()["timeSeries"]
    assert int(series["points"][0]["value"]["int64Value"]) in (36, 42), "6 or 7 of the 10 minutes are seen"
    assert sandbox.stats()["methods"][METHOD]["calls"] == 1
