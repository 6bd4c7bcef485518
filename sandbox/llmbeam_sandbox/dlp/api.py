"""`content:inspect` of Sensitive Data Protection's REST API."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from llmbeam_sandbox.core.backend import Backend
from llmbeam_sandbox.core.clock import timestamp
from llmbeam_sandbox.core.methods import Methods
from llmbeam_sandbox.core.responses import Reply, json_reply
from llmbeam_sandbox.core.rest import RestCall, RestError, Route, Service
from llmbeam_sandbox.dlp.checks import (
    checked_config,
    checked_location,
    checked_request,
    checked_table,
)
from llmbeam_sandbox.dlp.info_types import find
from llmbeam_sandbox.dlp.responses import (
    WORDING,
    disabled,
    finding,
    rate_limited,
    record_location,
)
from llmbeam_sandbox.dlp.state import DlpState, Inspected

METHODS = Methods(names=("dlp.content.inspect",))
_PATH = r"/v2/projects/(?P<project>[^/]+)(?:/locations/(?P<location>[^/]+))?/content:inspect"


class Dlp:
    """The method of the service.

    Args:
        backend: The clock.
        state: What it remembers.
    """

    def __init__(self, backend: Backend, state: DlpState) -> None:
        self._backend = backend
        self._state = state

    def inspect(self, call: RestCall) -> Reply:
        """Answers one request.

        Raises:
            RestError: It is refused.
        """
        project, location = call.names["project"], call.names["location"] or "global"
        fields = checked_request(call)
        if project in self._state.disabled_projects:
            raise disabled(project)
        if not self._state.admit(project, checked_location(location)):
            raise rate_limited(project)
        config, item = fields.get("inspectConfig") or {}, fields.get("item") or {}
        info_types, min_likelihood = checked_config(config)
        texts = list(_texts_of(item))
        created_at = timestamp(self._backend.now())
        findings: list[dict[str, Any]] = []
        for column, row, text in texts:
            record = record_location(column, row) if "table" in item else None
            for found in find(text, column, info_types, min_likelihood):
                quote = {"quote": text[found.start : found.end]} if config.get("includeQuote") else {}
                findings.append(quote | finding(found, text, record, created_at))
        most = self._state.max_findings
        self._state.record(
            Inspected(
                project=project,
                location=location,
                texts=tuple((column, text) for column, _, text in texts),
                text_bytes=sum(len(text.encode()) for _, _, text in texts),
                is_truncated=len(findings) > most,
            )
        )
        # The later half of what is left out would be found by a client that takes the first ones for all.
        result: dict[str, Any] = {"findings": findings[-most:]} if findings else {}
        if len(findings) > most:
            result["findingsTruncated"] = True
        return json_reply({"result": result})


def _texts_of(item: dict[str, Any]) -> Iterator[tuple[str, int, str]]:
    """Yields column, row and text of each value that is not empty."""
    if "table" in item:
        columns, rows = checked_table(item["table"])
        for index, row in enumerate(rows):
            yield from ((column, index, text) for column, text in zip(columns, row, strict=True) if text)
    elif "value" in item:
        yield "", 0, str(item["value"])
    else:
        raise RestError(400, "The item must have a value or a table.")


def routes(backend: Backend, state: DlpState) -> list[web.RouteDef]:
    """Returns the routes of the service."""
    route = Route(
        verb="POST", pattern=re.compile(_PATH), method="dlp.content.inspect", work=Dlp(backend, state).inspect
    )
    service = Service(backend, WORDING, [route], is_slow=False)
    return [web.route("*", "/v2/projects/{project}/{tail:(locations/[^/]+/)?content:inspect}", service.serve)]
