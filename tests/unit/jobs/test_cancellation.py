from __future__ import annotations

import pytest

from airflow_provider_llmbeam.exceptions import CloudUnavailableError
from airflow_provider_llmbeam.jobs.cancellation import DRAIN_SECONDS, STOP_REQUEST_SECONDS, stop_and_cancel
from tests.unit.jobs.values import dataflow_job


class Cloud:
    """Dataflow, Cloud Storage, the log and the clock; requests of the kinds in `refused` fail."""

    def __init__(self, state="RUNNING", refused=()):
        self.state, self.refused, self.events, self.lines = state, refused, [], []

    def get(self, job_id, within_seconds):
        self._request("get", within_seconds)
        return dataflow_job(job_id, "name", f"JOB_STATE_{self.state}")

    def files(self, uri):
        return self

    def write(self, uri, text, within_seconds):
        self._request("write", within_seconds)
        self.events.append(("write", uri))

    def cancel(self, job_id):
        self._request("cancel", 0.0)
        self.events.append(("cancel", job_id))

    def sleep(self, seconds):
        self.events.append(("sleep", seconds))

    def log(self, level, event, *args):
        self.lines.append(event % args)

    def stop_and_cancel(self):
        stop_and_cancel("job-1", "gs://b/stop", self, self, self.sleep)

    def _request(self, kind, within_seconds):
        assert within_seconds <= STOP_REQUEST_SECONDS
        if kind in self.refused:
            raise CloudUnavailableError(f"HTTP 503 for {kind}.")


def test_the_workers_record_what_is_in_flight_before_the_job_is_cancelled():
    cloud = Cloud()
    cloud.stop_and_cancel()
    assert cloud.events == [("write", "gs://b/stop"), ("sleep", DRAIN_SECONDS), ("cancel", "job-1")]


def test_no_stop_file_is_written_for_a_job_that_has_ended_as_it_would_end_the_next_one():
    cloud = Cloud("CANCELLED")
    cloud.stop_and_cancel()
    assert cloud.events == []


@pytest.mark.parametrize("refused", ["get", "write"])
def test_a_job_whose_workers_cannot_be_told_to_stop_is_cancelled_at_once(refused):
    cloud = Cloud(refused=[refused])
    cloud.stop_and_cancel()
    assert cloud.events == [("cancel", "job-1")]
    assert cloud.lines == [
        f"The workers could not be told to stop, so answers in flight are lost: HTTP 503 for {refused}."
    ]


def test_a_refused_cancellation_is_an_error():
    with pytest.raises(CloudUnavailableError):
        Cloud(refused=["cancel"]).stop_and_cancel()
