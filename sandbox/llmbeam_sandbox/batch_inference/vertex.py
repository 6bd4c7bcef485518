"""Vertex AI's `batchPredictionJobs` of Gemini and Claude, from and to Cloud Storage, v1 and v1beta1."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from llmbeam_sandbox.batch_inference.lines import (
    Row,
    encoded_lines,
    padded,
    read_lines,
    reordered,
)
from llmbeam_sandbox.batch_inference.responses import (
    EMPTY,
    ended,
    failed_row,
    not_ended,
    row_status,
)
from llmbeam_sandbox.batch_inference.state import Batches, Job, Jobs, Result, State
from llmbeam_sandbox.core.backend import Backend
from llmbeam_sandbox.core.checks import check_kms_key, check_labels, check_location, project_number
from llmbeam_sandbox.core.clock import timestamp
from llmbeam_sandbox.core.methods import Method, Methods
from llmbeam_sandbox.core.resource_filter import paged
from llmbeam_sandbox.core.responses import Reply, encoded, json_reply, read_object
from llmbeam_sandbox.core.rest import RestCall, RestError, Route, Service
from llmbeam_sandbox.models.anthropic import AnthropicDialect, PromptCache
from llmbeam_sandbox.models.calls import RefusedError, RowDialect
from llmbeam_sandbox.models.gemini import GeminiDialect
from llmbeam_sandbox.models.server import ModelServer
from llmbeam_sandbox.storage.state import ObjectStore
from llmbeam_sandbox.vertex.checks import check_host
from llmbeam_sandbox.vertex.responses import WORDING

METHODS = Methods(
    names=(
        "batch.vertexRow",
        "vertex.batchPredictionJobs.cancel",
        "vertex.batchPredictionJobs.create",
        "vertex.batchPredictionJobs.delete",
        "vertex.batchPredictionJobs.get",
        "vertex.batchPredictionJobs.list",
    )
)
MAX_ROWS = 200_000
"""Source: docs.cloud.google.com/vertex-ai/generative-ai/docs/multimodal/batch-prediction-gemini."""
LIFETIME_SECONDS = 72 * 3600.0
"""Longest time in the queue. Source: as of `MAX_ROWS`."""
_JOBS = r"/(?P<version>v1|v1beta1)/projects/(?P<project>[^/]+)/locations/(?P<location>[^/:]+)/batchPredictionJobs"
_JOB = rf"{_JOBS}/(?P<job>[^/:]+)"
_MODEL = re.compile(
    r"(?:projects/[^/]+/locations/[^/]+/)?(publishers/(?:google|anthropic))/models/([^/:@]+)(@[^/]*)?"
)
_GCS_URI = re.compile(r"gs://([^/]+)/?(.*)")
_KEPT = ("displayName", "labels", "inputConfig", "outputConfig", "encryptionSpec")
_STATES: Mapping[State, str] = {"queued": "JOB_STATE_PENDING"}
_FAILURE = (
    "Internal error occurred. Please retry in a few minutes. If you still experience errors, contact Vertex AI."
)


class VertexBatches:
    """The methods of `batchPredictionJobs`.

    Args:
        backend: Faults, request log and clock.
        batches: Timeline and settings of jobs.
        models: Answers the rows.
        store: Buckets of inputs and outputs.
        cache: What is stored of prompts of Claude.
    """

    def __init__(
        self, backend: Backend, batches: Batches, models: ModelServer, store: ObjectStore, cache: PromptCache
    ) -> None:
        self._batches, self._models, self._store, self._cache = batches, models, store, cache
        self.jobs = Jobs(batches.timeline, returns_expired=True)
        routes = [
            self._route("POST", _JOBS, "create", self._create),
            self._route("GET", _JOBS, "list", self._list),
            self._route("GET", _JOB, "get", self._get),
            self._route("POST", f"{_JOB}:cancel", "cancel", self._cancel),
            self._route("DELETE", _JOB, "delete", self._delete),
        ]
        self.service = Service(backend, WORDING, routes, is_slow=True)

    def _route(self, verb: str, path: str, name: str, work: Callable[[RestCall], Reply]) -> Route:
        def checked(call: RestCall) -> Reply:
            location = call.names["location"]
            if location != "global":
                check_location(location)
                check_host(call.headers.get("host", ""), location)
            with self._batches.timeline.settled():
                return work(call)

        method: Method = f"vertex.batchPredictionJobs.{name}"
        return Route(verb=verb, pattern=re.compile(path), method=method, work=checked)

    def _create(self, call: RestCall) -> Reply:
        fields = call.fields()
        check_labels(fields.get("labels") or {})
        check_kms_key((fields.get("encryptionSpec") or {}).get("kmsKeyName"), call.names["location"])
        labels = tuple(sorted((fields.get("labels") or {}).items()))
        if not fields.get("displayName"):
            raise RestError(400, "The display_name of the BatchPredictionJob is required.")
        model, dialect = self._dialect(call, str(fields.get("model") or ""))
        self._store.bucket(_bucket(_destination(fields))[0])
        lines, fault = self._lines(_sources(fields))
        serial, now = self._batches.next_serial(), self._batches.timeline.now()

        def answer(row: Row) -> Reply:
            if row.fate == "failed":
                return failed_row()
            return self._models.answer_row(dialect, encoded(row.line["request"]), labels)

        job = Job(
            name=f"{_parent(call)}/{10**18 + serial}",
            model=model,
            fields={"model": fields["model"], **{name: fields[name] for name in _KEPT if name in fields}},
            settings=self._batches.settings,
            created_at=now,
            lifetime_seconds=LIFETIME_SECONDS,
            rows=self._batches.rows(lines, serial),
            input_fault=fault,
            answer=answer,
            deliver=self._deliver,
        )
        self.jobs.submit(job)
        return json_reply(_resource(job, now))

    def _dialect(self, call: RestCall, name: str) -> tuple[str, RowDialect]:
        found = _MODEL.fullmatch(name)
        if found is None:
            raise RestError(
                400, f"List of found errors:\t1.Field: model; Message: The model {name!r} is invalid.\t"
            )
        if found[1].endswith("anthropic"):
            model = f"{found[2]}{found[3] or ''}"
            return model, AnthropicDialect(
                method="batch.vertexRow",
                cache=self._cache,
                input_token_limit=self._models.settings.input_token_limit,
                vertex_model=model,
                location=call.names["location"],
                resource=f"projects/{call.names['project']}/locations/{call.names['location']}",
            )
        dialect = GeminiDialect(
            method="batch.vertexRow",
            model=found[2],
            version=call.names["version"],
            publisher=found[1],
            project=f"projects/{call.names['project']}/locations/{call.names['location']}/",
            is_sse=False,
            input_token_limit=self._models.settings.input_token_limit,
            any_model=self._models.settings.any_model,
        )
        try:
            dialect.check_model()
        except RefusedError as error:
            raise RestError(404, dialect.not_found()) from error
        return dialect.model, dialect

    def _lines(self, uris: list[str]) -> tuple[list[dict[str, Any]], str]:
        """Returns the lines of the input and, if it cannot be read, why."""
        lines: list[dict[str, Any]] = []
        for uri in uris:
            try:
                objects = self._store.glob(uri)
                lines += [line for found in objects for line in read_lines(found.data, "request")]
            except (RestError, ValueError) as error:
                return [], f"Failed to read {uri}: {error}"
            if not objects:
                return [], f"Failed to read {uri}: no such object."
        if not 1 <= len(lines) <= MAX_ROWS:
            return [], f"The input must have 1 to {MAX_ROWS} requests; it has {len(lines)}."
        return lines, ""

    def _deliver(self, job: Job) -> None:
        bucket, prefix = _bucket(_destination(job.fields))
        # The job's number in place of nanoseconds: each has its own directory, also if the clock stands still.
        serial = int(job.name.rpartition("/")[2]) % 1_000_000
        time = timestamp(job.created_at).replace("Z", f"{serial:06d}Z")
        directory = "/".join(filter(None, (prefix.rstrip("/"), f"prediction-{job.model}-{time}")))
        lines = encoded_lines((result.row, _line(job, result)) for result in job.results)
        size = job.settings.rows_per_shard
        for number, start in enumerate(range(0, len(lines), size), start=1):
            data = b"".join(line + b"\n" for line in lines[start : start + size])
            self._store.put(bucket, f"{directory}/predictions_{number:05d}.jsonl", data, {}, {})
        job.output = {"gcsOutputDirectory": f"gs://{bucket}/{directory}"}

    def _job(self, call: RestCall) -> Job:
        job = self.jobs.all.get(f"{_parent(call)}/{call.names['job']}")
        if job is None:
            raise RestError(404, f"The BatchPredictionJob does not exist: {_parent(call)}/{call.names['job']}.")
        return job

    def _get(self, call: RestCall) -> Reply:
        return json_reply(_resource(self._job(call), self._batches.timeline.now()))

    def _list(self, call: RestCall) -> Reply:
        now, parent = self._batches.timeline.now(), _parent(call)
        found = [_resource(job, now) for name, job in self.jobs.all.items() if name.startswith(f"{parent}/")]
        return json_reply(paged(call, "batchPredictionJobs", found))

    def _cancel(self, call: RestCall) -> Reply:
        job = self._job(call)
        if not job.is_active:
            raise ended(job, "cancelled")
        self.jobs.cancel(job)
        return json_reply({})

    def _delete(self, call: RestCall) -> Reply:
        job = self._job(call)
        if job.is_active:
            raise not_ended(job)
        del self.jobs.all[job.name]
        where = _parent(call).removesuffix("/batchPredictionJobs")
        operation = f"{where}/operations/{job.name.rpartition('/')[2]}"
        return json_reply({"name": operation, "done": True, "response": EMPTY})


def routes(vertex: VertexBatches) -> list[web.RouteDef]:
    """Returns the routes of batch prediction jobs."""
    path = "/{version:v1|v1beta1}/projects/{project}/locations/{location}/{tail:batchPredictionJobs.*}"
    return [web.route("*", path, vertex.service.serve)]


def _parent(call: RestCall) -> str:
    names = call.names
    return f"projects/{project_number(names['project'])}/locations/{names['location']}/batchPredictionJobs"


def _sources(fields: Mapping[str, Any]) -> list[str]:
    config = fields.get("inputConfig") or {}
    uris = (config.get("gcsSource") or {}).get("uris")
    uris = [uris] if isinstance(uris, str) else uris
    if config.get("instancesFormat") != "jsonl" or not uris:
        raise RestError(400, "`inputConfig` must have the `instancesFormat` jsonl and a `gcsSource` with `uris`.")
    return list(uris)


def _destination(fields: Mapping[str, Any]) -> str:
    config = fields.get("outputConfig") or {}
    prefix = (config.get("gcsDestination") or {}).get("outputUriPrefix")
    if config.get("predictionsFormat") != "jsonl" or not prefix:
        raise RestError(
            400, "`outputConfig` must have the `predictionsFormat` jsonl and a `gcsDestination` with a prefix."
        )
    return str(prefix)


def _bucket(uri: str) -> tuple[str, str]:
    found = _GCS_URI.fullmatch(uri)
    if found is None:
        raise RestError(400, f"The Cloud Storage path is invalid: {uri}")
    return found[1], found[2]


def _line(job: Job, result: Result) -> dict[str, Any]:
    request = result.row.line["request"]
    request = padded(request) if job.settings.pads_echo else request
    named = {name: result.row.line[name] for name in ("custom_id",) if name in result.row.line}
    return {
        **named,
        "request": reordered(request) if job.settings.reorders_echo else request,
        "status": row_status(result.reply),
        "response": read_object(result.reply.body) if result.is_answered else {},
        "processed_time": timestamp(job.ended_at or job.created_at),
    }


def _resource(job: Job, now: float) -> dict[str, Any]:
    finished = job.finished_rows(now)
    shown: dict[str, Any] = {
        "name": job.name,
        **job.fields,
        "state": _STATES.get(job.state, f"JOB_STATE_{job.state.upper()}"),
        "createTime": timestamp(job.created_at),
        "updateTime": timestamp(
            max(at for at in (job.created_at, job.started_at, job.ended_at) if at is not None)
        ),
    }
    if job.started_at is not None:
        shown["startTime"] = timestamp(job.started_at)
        shown["completionStats"] = {
            "successfulCount": str(finished - job.failed_rows),
            "failedCount": str(job.failed_rows),
            "incompleteCount": str(len(job.rows) - finished),
        }
    if job.ended_at is not None:
        shown["endTime"] = timestamp(job.ended_at)
    if job.state == "failed":
        shown["error"] = {"code": 3 if job.input_fault else 13, "message": job.error or _FAILURE}
    return {**shown, "outputInfo": job.output} if job.output else shown
