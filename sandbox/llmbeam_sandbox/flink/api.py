"""The REST API of the job manager: the cluster, its jobs, what failed in them, and their cancellation."""

from __future__ import annotations

import re
from typing import Any

from aiohttp import web

from llmbeam_sandbox.core.backend import Backend
from llmbeam_sandbox.core.methods import Methods
from llmbeam_sandbox.core.responses import Reply, json_reply
from llmbeam_sandbox.core.rest import RestCall, RestError, Route, Service
from llmbeam_sandbox.flink import job_service
from llmbeam_sandbox.flink.responses import (
    WORDING,
    exceptions,
    has_ended,
    job_resource,
    not_found,
    overview,
)
from llmbeam_sandbox.flink.settings import FlinkSettings
from llmbeam_sandbox.flink.state import CANCELED, ENDED, Job, Jobs

METHODS = Methods(
    names=(
        "flink.jobmanager.config",
        "flink.jobs.cancel",
        "flink.jobs.exceptions",
        "flink.jobs.get",
        "flink.jobs.overview",
        "flink.overview",
    )
)
PATH = "/flink"
_ROOT = rf"{PATH}/[^/]+"
_JOB = rf"{_ROOT}/jobs/(?P<job>[0-9a-f]{{32}})"


class Flink:
    """A session cluster, at `PATH` of the sandbox and the token: the REST API of Flink has no login.

    Args:
        backend: Faults, request log and clock.

    Attributes:
        settings: Settings, which tests change.
        jobs: The jobs, which tests add and move.
    """

    def __init__(self, backend: Backend) -> None:
        self.settings = FlinkSettings()
        self.jobs = Jobs(backend.now)
        self._now = backend.now
        self.service = Service(backend, WORDING, self._routes(), is_slow=True)

    def clear(self) -> None:
        """Removes all jobs, and resets the settings."""
        self.jobs.clear()
        self.settings = FlinkSettings()

    def _routes(self) -> list[Route]:
        def route(verb: str, path: str, method: str, work: Any) -> Route:
            return Route(verb=verb, pattern=re.compile(path), method=f"flink.{method}", work=work)

        return [
            route("GET", f"{_ROOT}/overview", "overview", self._overview),
            route("GET", f"{_ROOT}/jobmanager/config", "jobmanager.config", self._configuration),
            route("GET", f"{_ROOT}/jobs/overview", "jobs.overview", self._list),
            route("GET", _JOB, "jobs.get", self._get),
            route("GET", f"{_JOB}/exceptions", "jobs.exceptions", self._exceptions),
            route("PATCH", _JOB, "jobs.cancel", self._cancel),
        ]

    def _overview(self, _: RestCall) -> Reply:
        return json_reply(overview(self.settings, self._all()))

    def _configuration(self, _: RestCall) -> Reply:
        return json_reply([{"key": key, "value": value} for key, value in self.settings.configuration.items()])

    def _list(self, _: RestCall) -> Reply:
        return json_reply({"jobs": [job_resource(job, self._now()) for job in self._all()]})

    def _get(self, call: RestCall) -> Reply:
        return json_reply(job_resource(self._job(call), self._now()))

    def _exceptions(self, call: RestCall) -> Reply:
        return json_reply(exceptions(self._job(call)))

    def _cancel(self, call: RestCall) -> Reply:
        if call.query.get("mode", "cancel") != "cancel":
            raise RestError(400, "Only the mode 'cancel' is emulated.")
        job = self._job(call)
        if job.state in ENDED:
            raise has_ended(job)
        if job.beam_id:
            job_service.cancel(self.settings.job_endpoint, job)
        else:
            self.jobs.move(job, CANCELED)
        return json_reply({}, http_status=202)

    def _job(self, call: RestCall) -> Job:
        for job in self._all():
            if job.id == call.names["job"]:
                return job
        raise not_found(call.names["job"])

    def _all(self) -> list[Job]:
        if self.settings.job_endpoint:
            job_service.show_jobs(self.settings.job_endpoint, self.jobs)
        return self.jobs.all()


def routes(flink: Flink) -> list[web.RouteDef]:
    """Returns the routes of the cluster."""
    return [web.route("*", f"{PATH}/{{token}}/{{tail:.*}}", flink.service.serve)]
