"""Anthropic's `/v1/messages/batches`: batches of messages, inline.

Source: the types of the published client (anthropic 2.14, `types.messages`, `resources.messages.batches`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from llmbeam_sandbox.batch_inference.lines import Row, encoded_lines
from llmbeam_sandbox.batch_inference.responses import authenticated
from llmbeam_sandbox.batch_inference.state import Batches, Job, Jobs
from llmbeam_sandbox.core.backend import Backend
from llmbeam_sandbox.core.clock import timestamp
from llmbeam_sandbox.core.methods import Methods
from llmbeam_sandbox.core.responses import Reply, encoded, json_reply, read_object
from llmbeam_sandbox.core.rest import RestCall, RestError, Route, Service, Wording
from llmbeam_sandbox.models.anthropic import AnthropicDialect, PromptCache, anthropic_error
from llmbeam_sandbox.models.server import ModelServer

METHODS = Methods(
    names=(
        "anthropic.batches.cancel",
        "anthropic.batches.create",
        "anthropic.batches.delete",
        "anthropic.batches.get",
        "anthropic.batches.list",
        "anthropic.batches.results",
        "batch.anthropicRow",
    )
)
MAX_ROWS = 100_000
MAX_BYTES = 256_000_000
LIFETIME_SECONDS = 24 * 3600.0
"""Source of these: platform.claude.com/docs/en/build-with-claude/batch-processing."""
_CUSTOM_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_BATCHES = "/v1/messages/batches"
_BATCH = f"{_BATCHES}/(?P<batch>[^/]+)"


class _Wording(Wording):
    """Errors in the format of Anthropic."""

    def reply(self, error: RestError) -> Reply:
        """Returns an error as JSON."""
        return anthropic_error(error.http_status, error.message)


_WORDING = _Wording(reasons={}, messages={}, rate_limit=RestError(429, ""))


class AnthropicBatches:
    """The methods of message batches.

    Args:
        backend: Faults, request log and clock.
        batches: Timeline and settings of jobs.
        models: Answers the rows.
        cache: What is stored of prompts.
    """

    def __init__(self, backend: Backend, batches: Batches, models: ModelServer, cache: PromptCache) -> None:
        self._batches, self._models = batches, models
        self.dialect = AnthropicDialect(
            method="batch.anthropicRow", cache=cache, input_token_limit=models.settings.input_token_limit
        )
        self.jobs = Jobs(batches.timeline, returns_expired=True)
        self._files: dict[str, bytes] = {}
        routes = [
            self._route("POST", _BATCHES, "create", self._create),
            self._route("GET", _BATCHES, "list", self._list),
            self._route("GET", _BATCH, "get", self._get),
            self._route("DELETE", _BATCH, "delete", self._delete),
            self._route("POST", f"{_BATCH}/cancel", "cancel", self._cancel),
            self._route("GET", f"{_BATCH}/results", "results", self._results),
        ]
        self.service = Service(backend, _WORDING, routes, is_slow=True)

    def _route(self, verb: str, path: str, name: str, work: Any) -> Route:
        def settled(call: RestCall) -> Reply:
            with self._batches.timeline.settled():
                reply: Reply = work(call)
                return reply

        return Route(verb=verb, pattern=re.compile(path), method=f"anthropic.batches.{name}", work=settled)

    def clear(self) -> None:
        """Removes all batches."""
        self.jobs.clear()
        self._files.clear()

    def _create(self, call: RestCall) -> Reply:
        if len(call.body) > MAX_BYTES:
            raise RestError(413, "Request exceeds the maximum allowed number of bytes.")
        lines = _requests(call.fields())
        serial, now = self._batches.next_serial(), self._batches.timeline.now()

        def answer(row: Row) -> Reply:
            if row.fate == "failed":
                return anthropic_error(529)
            return self._models.answer_row(self.dialect, encoded(row.line["params"]))

        job = Job(
            name=f"msgbatch_{serial:024x}",
            model="",
            fields={},
            settings=self._batches.settings,
            created_at=now,
            lifetime_seconds=LIFETIME_SECONDS,
            rows=self._batches.rows(lines, serial),
            answer=answer,
            deliver=self._deliver,
        )
        self.jobs.submit(job)
        return self._shown(call, job)

    def _deliver(self, job: Job) -> None:
        done = [(each.row, _result(each.reply)) for each in job.results]
        kind = "expired" if job.state == "expired" else "canceled"
        done += [(row, {"type": kind}) for row in job.rows[len(job.results) :]]
        found = [(row, {"custom_id": row.line["custom_id"], "result": result}) for row, result in done]
        self._files[job.name] = b"".join(line + b"\n" for line in encoded_lines(found))

    def _get(self, call: RestCall) -> Reply:
        return self._shown(call, self._job(call))

    def _list(self, call: RestCall) -> Reply:
        jobs = list(reversed(self.jobs.all.values()))
        limit, names = call.number("limit", 20), [job.name for job in jobs]
        if not 1 <= limit <= 1000:
            raise RestError(
                400, "limit: Input should be greater than or equal to 1 and less than or equal to 1000"
            )
        after, before = call.query.get("after_id"), call.query.get("before_id")
        if before in names:
            end = names.index(before)
            start = max(0, end - limit)
            has_more = start > 0
        else:
            start = names.index(after) + 1 if after in names else 0
            end = start + limit
            has_more = end < len(jobs)
        shown = [self._resource(call, job) for job in jobs[start:end]]
        return json_reply(
            {
                "data": shown,
                "has_more": has_more,
                "first_id": shown[0]["id"] if shown else None,
                "last_id": shown[-1]["id"] if shown else None,
            }
        )

    def _cancel(self, call: RestCall) -> Reply:
        job = self._job(call)
        if job.is_active:
            self.jobs.cancel(job)
        return self._shown(call, job)

    def _delete(self, call: RestCall) -> Reply:
        job = self._job(call)
        if job.is_active:
            raise RestError(400, "Message Batches can only be deleted once they have finished processing.")
        del self.jobs.all[job.name]
        self._files.pop(job.name, None)
        return json_reply({"id": job.name, "type": "message_batch_deleted"})

    def _results(self, call: RestCall) -> Reply:
        job = self._job(call)
        if job.name not in self._files:
            raise RestError(404, f"The batch {job.name} has no available results.")
        return Reply(chunks=(self._files[job.name],), content_type="application/x-jsonl")

    def _job(self, call: RestCall) -> Job:
        if call.names["batch"] not in self.jobs.all:
            raise RestError(404, f"No message batch found with id {call.names['batch']}.")
        return self.jobs.all[call.names["batch"]]

    def _shown(self, call: RestCall, job: Job) -> Reply:
        return json_reply(self._resource(call, job))

    def _resource(self, call: RestCall, job: Job) -> dict[str, Any]:
        errored, rest = job.failed_rows, len(job.rows) - len(job.results)
        kind = "processing" if job.is_active else "expired" if job.state == "expired" else "canceled"
        # Nothing is counted as done before the end of the whole batch.
        counts = {**dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0), kind: rest}
        counts |= {"succeeded": len(job.results) - errored, "errored": errored}
        url = f"{call.base_url}{_BATCHES}/{job.name}/results" if job.name in self._files else None
        return {
            "id": job.name,
            "type": "message_batch",
            "processing_status": "ended"
            if not job.is_active
            else "canceling"
            if job.state == "cancelling"
            else "in_progress",
            "request_counts": counts,
            "created_at": timestamp(job.created_at),
            "expires_at": timestamp(job.expires_at),
            "ended_at": None if job.ended_at is None else timestamp(job.ended_at),
            "cancel_initiated_at": None if job.stopped_at is None else timestamp(job.stopped_at),
            "archived_at": None,
            "results_url": url,
        }


def routes(batches: AnthropicBatches) -> list[web.RouteDef]:
    """Returns the routes of message batches."""
    serve = authenticated(batches.dialect.authenticate, batches.service.serve)
    return [web.route("*", f"{_BATCHES}{{tail:(?:/.*)?}}", serve)]


def _requests(fields: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    """Returns the requests of a batch, whose parameters are checked when they are answered."""
    found = fields.get("requests")
    if not isinstance(found, list) or not 1 <= len(found) <= MAX_ROWS:
        raise RestError(400, f"requests: List should have 1 to {MAX_ROWS} items")
    if unknown := fields.keys() - {"requests"}:
        raise RestError(400, f"{sorted(unknown)[0]}: Extra inputs are not permitted")
    for number, each in enumerate(found):
        if not isinstance(each, dict) or not isinstance(each.get("params"), dict) or len(each) != 2:
            raise RestError(400, f"requests.{number}: Input should have `custom_id` and `params`")
        if not isinstance(each["custom_id"], str) or not _CUSTOM_ID.fullmatch(each["custom_id"]):
            raise RestError(
                400, f"requests.{number}.custom_id: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'"
            )
    if len({each["custom_id"] for each in found}) < len(found):
        raise RestError(400, "requests: custom_id must be unique within the batch")
    return found


def _result(reply: Reply) -> dict[str, Any]:
    body = read_object(reply.body)
    return (
        {"type": "succeeded", "message": body} if reply.http_status == 200 else {"type": "errored", "error": body}
    )
