from __future__ import annotations

import logging
from datetime import UTC, datetime

import pytest

from airflow_provider_llmbeam.endpoints.resource import Resource
from airflow_provider_llmbeam.exceptions import AccessDeniedError, CloudUnavailableError
from airflow_provider_llmbeam.spec.remote_job import RemoteJob
from airflow_provider_llmbeam.sweepers.endpoints import is_abandoned, is_due, sweep

pytestmark = pytest.mark.promise(3)

PLACE = "projects/p/locations/us-central1"


def resource(kind="endpoint", expires="1000", **labels):
    own = {"llmbeam-key": "k", "llmbeam-deployment": "prod", "llmbeam-expires": expires}
    return Resource(kind, f"{PLACE}/{kind}s/a", {**own, **labels})


@pytest.mark.parametrize(
    ("resources", "due"),
    [
        ([resource()], True),
        ([resource(expires="1001")], False),
        ([resource(), resource("model", expires="5000")], True),
        ([resource(expires="5000"), resource("model")], False),
        ([resource("model")], True),
        ([resource(expires="soon")], False),
        ([resource(), resource(expires="5000")], False),
    ],
)
def test_resources_are_due_once_their_endpoint_has_expired(resources, due):
    assert is_due(resources, 1_001.0, 0.0) is due
    assert is_due(resources, 1_001.0, 2.0) is False


def job(age_seconds=0.0, **labels):
    created = datetime.fromtimestamp(10_000.0 - age_seconds, UTC)
    return RemoteJob(
        "j", "n", "JOB_STATE_RUNNING", created, {"llmbeam-job": "n", "llmbeam-deployment": "prod", **labels}
    )


def test_a_job_is_abandoned_with_its_endpoint_or_above_the_maximum_age():
    asks = {"llmbeam-endpoint": "llmbeam-k"}
    assert is_abandoned(job(**asks), frozenset({"llmbeam-k"}), 10_000.0, None)
    assert not is_abandoned(job(**asks), frozenset(), 10_000.0, 3_600.0)
    assert is_abandoned(job(3_601.0), frozenset(), 10_000.0, 3_600.0)
    assert not is_abandoned(job(3_601.0), frozenset(), 10_000.0, None)


class Jobs:
    location = "us-central1"

    def __init__(self, *jobs, error=None):
        self.jobs, self.error, self.cancelled = jobs, error, []

    def active(self):
        return list(self.jobs)

    def cancel(self, job_id):
        if self.error:
            raise self.error
        self.cancelled.append(job_id)


class Platform:
    location = "us-central1"

    def __init__(self, *resources, error=None):
        self.resources, self.error = list(resources), error

    def find(self, key):
        if self.error:
            raise self.error
        return [one for one in self.resources if key in (None, one.key)], None

    def running_operations(self, key):
        return []

    def remove(self, resource):
        self.resources.remove(resource)


def swept(platforms, jobs=(), **arguments):
    settings = {
        "deployments": {"prod"},
        "now": 10_000.0,
        "dry_run": False,
        "older_than_seconds": 0.0,
        "max_job_age_seconds": 60.0,
        "gone_within_seconds": 10.0,
        "log": logging.getLogger(),
    }
    return sweep(platforms, jobs, **{**settings, **arguments})


def test_a_location_that_cannot_be_listed_does_not_stop_the_others():
    manifest = swept(
        [
            Platform(error=AccessDeniedError("No.")),
            Platform(resource()),
            Platform(error=CloudUnavailableError("503.")),
            Platform(error=RuntimeError("503 of the secrets backend")),
        ]
    )
    assert manifest.deleted == [f"{PLACE}/endpoints/a"]
    assert manifest.failed == ["No.", "503.", "RuntimeError: 503 of the secrets backend"]


def test_an_endpoint_that_a_later_try_provisions_again_during_the_sweep_is_kept():
    platform, renewed = Platform(resource()), resource(expires="10001")
    listed = platform.find

    def find(key):
        if key is not None:
            platform.resources = [renewed]
        return listed(key)

    platform.find = find
    manifest = swept([platform])
    assert platform.resources == [renewed]
    assert (manifest.deleted, manifest.kept) == ([], [f"{PLACE}/endpoints/a"])


def test_a_job_that_cannot_be_cancelled_is_reported_as_possibly_billing():
    jobs = Jobs(job(100.0), error=AccessDeniedError("No."))
    manifest = swept([], [jobs])
    assert manifest.cancelled == []
    assert manifest.failed == ["Job 'j' may still be billing: No."]


def test_abandoned_jobs_are_cancelled_and_others_kept():
    old, young = Jobs(job(100.0)), Jobs(job(10.0))
    manifest = swept([], [old, young])
    assert (old.cancelled, young.cancelled) == (["j"], [])
    assert (manifest.cancelled, manifest.kept) == (["us-central1/jobs/j"], ["us-central1/jobs/j"])


def test_a_dry_run_changes_neither_endpoints_nor_jobs():
    platform, jobs = Platform(resource()), Jobs(job(100.0))
    manifest = swept([platform], [jobs], dry_run=True)
    assert platform.resources
    assert jobs.cancelled == []
    assert (manifest.deleted, manifest.cancelled) == ([f"{PLACE}/endpoints/a"], ["us-central1/jobs/j"])


FOREIGN = [{"llmbeam-key": "d", "llmbeam-deployment": "dev"}, {"llmbeam-key": "u", "llmbeam-deployment": ""}]


@pytest.mark.parametrize("labels", FOREIGN, ids=["another deployment", "no label"])
def test_nothing_of_another_deployment_is_swept_and_the_log_names_it(labels, caplog):
    platform, jobs = Platform(resource(**labels)), Jobs(job(100.0, **labels))
    with caplog.at_level("INFO"):
        manifest = swept([platform], [jobs])
    assert platform.resources
    assert jobs.cancelled == []
    assert manifest.foreign == [f"{PLACE}/endpoints/a", "us-central1/jobs/j"]
    assert (manifest.deleted, manifest.kept) == ([], [])
    assert f"no label llmbeam-deployment=prod: {PLACE}/endpoints/a, us-central1/jobs/j" in caplog.text


def test_another_deployment_is_swept_when_it_is_named():
    platform, jobs = Platform(resource(), resource(**FOREIGN[0])), Jobs(job(100.0, **FOREIGN[0]))
    manifest = swept([platform], [jobs], deployments={"dev"})
    assert [one.deployment for one in platform.resources] == ["prod"]
    assert jobs.cancelled == ["j"]
    assert len(manifest.foreign) == 1
