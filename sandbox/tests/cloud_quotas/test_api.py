from __future__ import annotations

import httpx
import pytest
from google.auth.transport.requests import AuthorizedSession
from llmbeam_sandbox import EndpointSettings, Fault, ManualClock, ModelSettings, Quota, Sandbox

PARENT = "/v1/projects/p/locations/global/services"
VERTEX = f"{PARENT}/aiplatform.googleapis.com/quotaInfos"
RUN = f"{PARENT}/run.googleapis.com/quotaInfos"
REQUESTS = "GenerateContentRequestsPerMinutePerProjectPerRegionPerBaseModel"
METRIC = "aiplatform.googleapis.com/generate_content_requests_per_minute_per_project_per_base_model"
L4 = "CustomModelServingL4GPUsPerProjectPerRegion"


def infos(http, path, **query):
    return {one["quotaId"]: one for one in http.get(path, params=query).json().get("quotaInfos", [])}


def limit_in(info, location, **names):
    """Reads a limit as the API reference defines it: the first entry that matches these dimensions."""
    names["region"] = location
    for one in info["dimensionsInfos"]:
        is_meant = all(names.get(name) == value for name, value in one.get("dimensions", {}).items())
        if is_meant and location in one["applicableLocations"]:
            return one["details"].get("value", "0")
    return None


def test_the_limit_of_a_model_is_listed_by_location(http, sandbox) -> None:
    with Sandbox(
        models=ModelSettings(
            quota=Quota(requests_per_minute=600), location_quotas={"europe-west4": Quota(requests_per_minute=30)}
        )
    ) as cloud:
        cloud.monitoring.publish_quota("gemini-2.5-flash")
        with httpx.Client(base_url=cloud.url) as client:
            info = infos(client, VERTEX)[REQUESTS]
            assert {name: info[name] for name in info if name not in ("dimensionsInfos", "name")} == {
                "quotaId": REQUESTS,
                "metric": METRIC,
                "service": "aiplatform.googleapis.com",
                "isPrecise": True,
                "containerType": "PROJECT",
                "dimensions": ["region", "base_model"],
                "metricDisplayName": "Generate content requests per minute per project per base model per region",
                "quotaDisplayName": "Generate content requests per minute per project per base model per region",
                "metricUnit": "1",
                "isFixed": False,
                "refreshInterval": "minute",
            }
            assert info["name"].startswith("projects/1")
            assert info["dimensionsInfos"][0] == {
                "dimensions": {"region": "europe-west4", "base_model": "gemini-2.5-flash"},
                "details": {"value": "30"},
                "applicableLocations": ["europe-west4"],
            }
            assert limit_in(info, "europe-west4", base_model="gemini-2.5-flash") == "30"
            assert limit_in(info, "global", base_model="gemini-2.5-flash") == "600"
            assert limit_in(info, "global", base_model="gemini-1.5-pro") is None
            cloud.set_quota(Quota(requests_per_minute=60), "global")
            cloud.set_quota(Quota())
            info = client.get(f"{VERTEX}/{REQUESTS}").json()
            assert limit_in(info, "global", base_model="gemini-2.5-flash") == "60"
            assert limit_in(info, "us-central1", base_model="gemini-2.5-flash") == "-1"


def test_only_used_or_named_models_with_a_published_quota_are_listed(http, sandbox) -> None:
    assert REQUESTS not in infos(http, VERTEX)
    add = sandbox.monitoring.add_traffic
    for model in ("gemini-2.5-flash", "gemini-1.5-pro-002", "text-embedding-005"):
        add(model, minutes=1, requests_per_minute=1)
    found = infos(http, VERTEX)
    assert [one["dimensions"] for one in found[REQUESTS]["dimensionsInfos"]] == [{"base_model": "gemini-1.5-pro"}]
    (embedding,) = found["OnlinePredictionRequestsPerMinutePerProjectPerRegionPerBaseModel"]["dimensionsInfos"]
    assert embedding["dimensions"] == {"base_model": "textembedding-gecko"}
    sandbox.monitoring.publish_quota("gemini-1.5-pro-002", False)
    assert REQUESTS not in infos(http, VERTEX)


def test_accelerator_quotas_are_listed_by_region() -> None:
    quota = {"europe-west4": {"NVIDIA_L4": 2}, "us-central1": {"NVIDIA_H100_80GB": 8}}
    with Sandbox(endpoints=EndpointSettings(gpu_quota=quota)) as cloud, httpx.Client(base_url=cloud.url) as client:
        vertex, run = infos(client, VERTEX), infos(client, RUN)
        assert vertex[L4]["metric"] == "aiplatform.googleapis.com/custom_model_serving_nvidia_l4_gpus"
        assert {place: limit_in(vertex[L4], place) for place in ("europe-west4", "us-central1", "mars")} == {
            "europe-west4": "2",
            "us-central1": "0",
            "mars": None,
        }
        for zones in ("", "NoZonalRedundancy"):
            info = run[f"NvidiaL4GpuAlloc{zones}PerProjectRegion"]
            assert limit_in(info, "europe-west4") == "2"
            assert info["dimensions"] == ["region"]
        metric = run["NvidiaL4GpuAllocNoZonalRedundancyPerProjectRegion"]["metric"]
        assert metric == "run.googleapis.com/nvidia_l4_gpu_allocation_no_zonal_redundancy"
        assert infos(client, f"{PARENT}/compute.googleapis.com/quotaInfos") == {}


def test_an_unlimited_quota_is_minus_one(http) -> None:
    assert limit_in(infos(http, VERTEX)[L4], "us-central1") == "-1"


def test_quotas_come_in_pages(http) -> None:
    first = http.get(VERTEX, params={"pageSize": 3}).json()
    rest = http.get(VERTEX, params={"pageToken": first["nextPageToken"]}).json()
    names = [one["name"] for one in (*first["quotaInfos"], *rest["quotaInfos"])]
    assert len(first["quotaInfos"]) == 3
    assert len(set(names)) == len(names) == len(infos(http, VERTEX))
    assert "nextPageToken" not in rest


def test_a_missing_quota_is_not_found(http) -> None:
    refused = http.get(f"{VERTEX}/Nothing")
    assert refused.status_code == 404
    assert refused.json()["error"]["status"] == "NOT_FOUND"


@pytest.mark.parametrize(("kind", "status"), [("error", 403), ("rate-limit", 429)])
def test_a_fault_has_the_error_format_of_google(http, sandbox, kind, status) -> None:
    fault = Fault(kind=kind, http_status=status if kind == "error" else None)
    sandbox.faults.queue("cloudquotas.quotaInfos.list", fault)
    refused = http.get(VERTEX)
    assert refused.status_code == status
    assert refused.json()["error"]["status"] in ("PERMISSION_DENIED", "RESOURCE_EXHAUSTED")


def test_vertex_paths_are_limited_separately_in_each_location() -> None:
    quotas = {"europe-west4": Quota(requests_per_minute=60)}
    clock = ManualClock()
    with Sandbox(
        clock=clock, models=ModelSettings(quota=Quota(requests_per_minute=1), location_quotas=quotas)
    ) as cloud:

        def ask(location):
            path = f"/v1/projects/p/locations/{location}/publishers/google/models/gemini-2.5-flash:generateContent"
            body = {"contents": [{"parts": [{"text": "hello"}]}]}
            return httpx.post(cloud.url + path, json=body, headers={"Authorization": "Bearer t"}).status_code

        assert [ask("europe-west4") for _ in range(3)] == [200, 200, 429]
        assert [ask("us-central1") for _ in range(2)] == [200, 429]
        assert [ask("global") for _ in range(2)] == [200, 429]
        assert {one.resource for one in cloud.requests if one.http_status == 200} == {
            f"projects/p/locations/{location}" for location in ("europe-west4", "us-central1", "global")
        }
        cloud.set_quota(Quota(), "global")
        assert [ask("global"), ask("us-central1"), ask("europe-west4")] == [200, 429, 429]
        cloud.reset()
        assert [ask("global") for _ in range(2)] == [200, 429]


def test_the_google_host_reaches_the_sandbox_through_the_proxy(sandbox, google) -> None:
    import google.auth

    credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    with AuthorizedSession(credentials) as session:
        reply = session.get(f"https://cloudquotas.googleapis.com{VERTEX}")
    assert L4 in [one["quotaId"] for one in reply.json()["quotaInfos"]]
    assert sandbox.stats()["methods"]["cloudquotas.quotaInfos.list"]["calls"] == 1
