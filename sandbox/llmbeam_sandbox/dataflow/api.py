"""Dataflow's REST API v1b3: jobs that are executed, their messages and metrics, flex templates."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from aiohttp import web

from llmbeam_sandbox.core.backend import Backend
from llmbeam_sandbox.core.checks import check_kms_key
from llmbeam_sandbox.core.methods import Method, Methods
from llmbeam_sandbox.core.responses import Reply, json_reply
from llmbeam_sandbox.core.rest import RestCall, RestError, Route, Service, page
from llmbeam_sandbox.dataflow import checks, flex
from llmbeam_sandbox.dataflow.responses import (
    WORDING,
    message_resource,
    not_created,
    not_found,
    refused,
)
from llmbeam_sandbox.dataflow.runs import KILL_HARNESS, Runs
from llmbeam_sandbox.dataflow.settings import DataflowSettings
from llmbeam_sandbox.dataflow.state import (
    BATCH,
    CANCELLED,
    IMPORTANCES,
    PENDING,
    QUEUED,
    RUNNING,
    STREAMING,
    Job,
    Jobs,
    timestamp,
    workers_of,
)
from llmbeam_sandbox.storage.state import ObjectStore

METHODS = Methods(
    names=(
        "dataflow.flexTemplates.launch",
        "dataflow.jobs.aggregated",
        "dataflow.jobs.create",
        "dataflow.jobs.get",
        "dataflow.jobs.getMetrics",
        "dataflow.jobs.list",
        "dataflow.jobs.messages.list",
        "dataflow.jobs.update",
    )
)
DEFAULT_LOCATION = "us-central1"
DEFAULT_PAGE = 100
_PROJECT = r"/v1b3/projects/(?P<project>[^/]+)"
_LOCATION = rf"{_PROJECT}(?:/locations/(?P<location>[^/]+))?"
_JOB = rf"{_LOCATION}/jobs/(?P<job>[^/:]+)"
# Numbers of the enums in jobs.proto and messages.proto; clients send either names or these.
_NUMBERED: Mapping[str, Mapping[str, str]] = {
    "view": {"0": "", "1": "JOB_VIEW_SUMMARY", "2": "JOB_VIEW_ALL", "3": "JOB_VIEW_DESCRIPTION"},
    "filter": {"0": "", "1": "ALL", "2": "TERMINATED", "3": "ACTIVE"},
    "minimumImportance": {"0": "", "1": IMPORTANCES[0], "2": IMPORTANCES[1], "3": IMPORTANCES[3]}
    | {"4": IMPORTANCES[4], "5": IMPORTANCES[2]},
    "requestedState": {"3": "JOB_STATE_DONE", "5": CANCELLED, "6": "JOB_STATE_UPDATED", "7": "JOB_STATE_DRAINING"}
    | {"8": "JOB_STATE_DRAINED"},
    "type": {"0": "", "1": BATCH, "2": STREAMING},
}


class Dataflow:
    """The methods of Dataflow.

    Args:
        backend: Faults, request log and clock.
        store: Cloud Storage, which holds staged files and templates.
        settings: Settings of the jobs.
    """

    def __init__(self, backend: Backend, store: ObjectStore, settings: DataflowSettings) -> None:
        self._jobs = Jobs(backend.now)
        self.runs = Runs(self._jobs, settings)
        self._store = store
        self._settings = settings
        self._launcher = flex.Launcher(self._jobs, self.runs, store, settings.flex_launcher, self._submit_queued)
        self.service = Service(backend, WORDING, self._routes(), is_slow=True)

    @property
    def jobs(self) -> list[dict[str, Any]]:
        """All jobs as the API returns them, the newest first."""
        return [job.resource() for job in self._jobs.all()]

    def states(self, job_id: str) -> list[str]:
        """Returns all states that a job has had, in order.

        Raises:
            KeyError: There is no such job.
        """
        return list(self._by_id(job_id).states)

    def by_state(self) -> dict[str, int]:
        """Returns the number of jobs by state."""
        return self._jobs.by_state()

    def add_running(self, project: str, location: str, fields: Mapping[str, Any]) -> str:
        """Adds a running job of another client, which has no process here, and returns its ID.

        Args:
            project: Project that owns the job.
            location: Region.
            fields: Fields in the format of the API; `name` is needed.
        """
        return self._jobs.add(project, location, fields, RUNNING).id

    def kill_harness(self, job_id: str) -> None:
        """Kills one SDK harness of a running job with SIGKILL, as when a machine is lost.

        Raises:
            KeyError: There is no such job.
        """
        self.runs.send(self._by_id(job_id), KILL_HARNESS)

    def clear(self) -> None:
        """Kills and removes all jobs."""
        self.runs.end_all()
        self._jobs.clear()

    def _by_id(self, job_id: str) -> Job:
        for job in self._jobs.all():
            if job.id == job_id:
                return job
        raise KeyError(f"There is no Dataflow job {job_id!r}.")

    def _routes(self) -> list[Route]:
        return [
            self._route("POST", f"{_LOCATION}/jobs", "dataflow.jobs.create", self._create),
            self._route("GET", f"{_LOCATION}/jobs", "dataflow.jobs.list", self._list),
            self._route("GET", rf"{_PROJECT}/jobs:aggregated", "dataflow.jobs.aggregated", self._list),
            self._route("GET", _JOB, "dataflow.jobs.get", self._get),
            self._route("PUT", _JOB, "dataflow.jobs.update", self._update),
            self._route("GET", f"{_JOB}/messages", "dataflow.jobs.messages.list", self._messages),
            self._route("GET", f"{_JOB}/metrics", "dataflow.jobs.getMetrics", self._metrics),
            self._route(
                "POST", f"{_LOCATION}/flexTemplates:launch", "dataflow.flexTemplates.launch", self._launch
            ),
        ]

    def _route(self, verb: str, path: str, method: Method, work: Callable[[RestCall], Reply]) -> Route:
        permission = "dataflow.jobs.create" if verb == "POST" else method

        def checked(call: RestCall) -> Reply:
            checks.check_project(call.names["project"], self._settings.projects, permission)
            if call.names.get("location"):
                checks.check_location(call.names["location"])
            return work(call)

        return Route(verb=verb, pattern=re.compile(path), method=method, work=checked)

    # Jobs

    def _create(self, call: RestCall) -> Reply:
        fields = _fields(call)
        project = call.names["project"]
        location = call.names.get("location") or str(fields.get("location") or DEFAULT_LOCATION)
        checks.check_location(location)
        self._check(fields, location)
        with self._jobs.lock:
            active = self._jobs.active(project, location, str(fields["name"]))
            if active is not None:
                # Not an error: clients detect by `clientRequestId` that the job is not theirs.
                return json_reply(active.resource())
            job = self._jobs.add(project, location, fields, PENDING)
        self._execute(job)
        return json_reply(job.resource())

    def _submit_queued(self, job: Job, fields: dict[str, Any]) -> None:
        """Executes the job of a flex template, with the fields that its launcher wrote."""
        self._check(fields, job.location)
        labels = {**(job.fields.get("labels") or {}), **(fields.get("labels") or {})}
        job.fields |= {**fields, "name": job.name, "labels": labels}
        self._jobs.move(job, PENDING)
        self._execute(job)

    def _execute(self, job: Job) -> None:
        workers = workers_of(job.fields)
        text = f"Worker configuration: {workers.machine_type or 'n1-standard-1'} in {job.location}."
        self._jobs.log(job, "JOB_MESSAGE_BASIC", text)
        self.runs.execute(job)

    def _check(self, fields: dict[str, Any], location: str) -> None:
        checks.check_name(str(fields.get("name") or ""))
        fields["type"] = _name("type", fields.get("type")) or BATCH
        if fields["type"] == STREAMING:
            raise RestError(501, "The sandbox does not emulate streaming jobs.")
        environment = fields.get("environment") or {}
        options = (environment.get("sdkPipelineOptions") or {}).get("options") or {}
        if not options.get("pipelineUrl"):
            raise not_created("The job has no staged pipeline (`pipelineUrl` of its options).")
        checks.check_machine_type(workers_of(fields).machine_type)
        check_kms_key(environment.get("serviceKmsKeyName"), location)
        checks.check_bucket(self._store, str(environment.get("tempStoragePrefix") or ""), "temporary")
        checks.check_bucket(self._store, str(options["pipelineUrl"]), "staging")

    def _job(self, call: RestCall) -> Job:
        found = self._jobs.find(call.names["project"], call.names.get("location", ""), call.names["job"])
        if found is None:
            raise not_found(call.names["job"])
        return found

    def _get(self, call: RestCall) -> Reply:
        return json_reply(self._job(call).resource(_name("view", call.query.get("view"))))

    def _list(self, call: RestCall) -> Reply:
        wanted, name = _name("filter", call.query.get("filter")), call.query.get("name")
        found = [
            job
            for job in self._jobs.all()
            if job.project == call.names["project"]
            and call.names.get("location") in (None, "", job.location)
            and name in (None, "", job.name)
            and not (wanted == "ACTIVE" and not job.is_active)
            and not (wanted == "TERMINATED" and job.is_active)
        ]
        chosen, token = page(call, found, default=DEFAULT_PAGE, size="pageSize")
        omitted = set() if self._settings.lists_labels else {"labels"}
        shown = [job.resource("JOB_VIEW_SUMMARY") for job in chosen]
        jobs = [{name: one[name] for name in one.keys() - omitted} for one in shown]
        return json_reply({"jobs": jobs} | token)

    def _update(self, call: RestCall) -> Reply:
        job, fields = self._job(call), _fields(call)
        requested = _name("requestedState", fields.get("requestedState"))
        with self._jobs.lock:
            if fields.get("labels"):
                job.fields["labels"] = fields["labels"]
            if requested:
                self._request(job, requested)
        if requested == CANCELLED and job.is_active:
            self.runs.cancel(job)
        return json_reply(job.resource())

    def _request(self, job: Job, state: str) -> None:
        if state != CANCELLED:
            raise refused(
                400,
                f"Workflow modification failed. Causes: a batch job can only be cancelled; {state} was requested.",
                "FAILED_PRECONDITION",
            )
        if not job.is_active:
            raise refused(
                400,
                f"Workflow modification failed. Causes: the job {job.id} has already ended in {job.state}.",
                "FAILED_PRECONDITION",
            )
        job.fields["requestedState"] = state
        self._jobs.log(job, "JOB_MESSAGE_BASIC", f"Cancel request is requested for job {job.id}.")

    # Messages and metrics

    def _messages(self, call: RestCall) -> Reply:
        job, query = self._job(call), call.query
        least = _name("minimumImportance", query.get("minimumImportance"))
        rank = IMPORTANCES.index(least) if least in IMPORTANCES else 0
        start, end = _moment(query.get("startTime")), _moment(query.get("endTime"))
        found = [
            (number, message)
            for number, message in enumerate(list(job.messages))
            if IMPORTANCES.index(message.importance) >= rank
            # As written: a client requests the messages after the time that it received.
            and (not start or timestamp(message.at) >= start)
            and (not end or timestamp(message.at) < end)
        ]
        chosen, token = page(call, found, default=DEFAULT_PAGE, size="pageSize")
        return json_reply(
            {"jobMessages": [message_resource(number, message) for number, message in chosen]} | token
        )

    def _metrics(self, call: RestCall) -> Reply:
        job = self._job(call)
        at = timestamp(job.metrics_at or job.created_at)
        return json_reply({"metricTime": at, "metrics": [{**one, "updateTime": at} for one in job.metrics]})

    # Flex templates

    def _launch(self, call: RestCall) -> Reply:
        fields = _fields(call)
        launch = flex.read(self._store, fields.get("launchParameter") or fields.get("launch_parameter") or {})
        checks.check_name(launch.name)
        checks.check_machine_type(str(launch.environment.get("machineType") or ""))
        for setting, what in (("tempLocation", "temporary"), ("stagingLocation", "staging")):
            checks.check_bucket(self._store, str(launch.environment.get(setting) or ""), what)
        if fields.get("validateOnly"):
            return json_reply({})
        project, location = call.names["project"], call.names.get("location") or DEFAULT_LOCATION
        with self._jobs.lock:
            active = self._jobs.active(project, location, launch.name)
            if active is not None:
                raise refused(
                    409,
                    "The workflow could not be created. Causes: There is already an active job named "
                    f"{launch.name}. "
                    "If you want to submit a second job, try again by setting a different name.",
                )
            draft = {"name": launch.name, "type": BATCH, "labels": launch.labels}
            job = self._jobs.add(project, location, draft, QUEUED)
        self._launcher.start(job, launch)
        return json_reply({"job": job.resource("JOB_VIEW_SUMMARY")})


def routes(dataflow: Dataflow) -> list[web.RouteDef]:
    """Returns the routes of Dataflow, and the one with which other processes kill a harness."""

    async def kill(request: web.Request) -> web.Response:
        try:
            dataflow.kill_harness(request.match_info["job"])
        except KeyError as error:
            return web.json_response({"error": str(error.args[0])}, status=404)
        return web.json_response({})

    return [
        web.route("*", "/v1b3/{tail:.*}", dataflow.service.serve),
        web.post("/sandbox/dataflow/jobs/{job}/kill-harness", kill),
    ]


def _fields(call: RestCall) -> dict[str, Any]:
    try:
        return call.fields()
    except RestError as error:
        raise RestError(400, "Invalid JSON payload received.") from error


def _name(field: str, value: Any) -> str:
    """Returns the name of an enum's value, which may be sent as a number."""
    text = "" if value is None else str(value)
    return _NUMBERED[field].get(text, text)


def _moment(text: str | None) -> str:
    if not text:
        return ""
    try:
        return timestamp(datetime.fromisoformat(text).timestamp())
    except ValueError as error:
        raise RestError(400, f"Invalid value at 'startTime' or 'endTime': {json.dumps(text)}") from error
