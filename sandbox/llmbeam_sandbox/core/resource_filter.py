"""Filters and pages of lists in Google's APIs: `labels.a=b AND labels.c:* AND display_name:"d*"`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from llmbeam_sandbox.core.responses import Reply, json_reply
from llmbeam_sandbox.core.rest import RestCall, RestError, page

_TERM = re.compile(r'(?P<field>[\w.-]+)\s*(?:(?P<sign>!=|=|:)\s*(?P<value>"[^"]*"|\S+))?')
DEFAULT_PAGE = 100


class Listed(Protocol):
    """A resource that a list shows."""

    def resource(self) -> dict[str, Any]:
        """Returns it as the API returns it."""


def matches(text: str, resource: Mapping[str, Any]) -> bool:
    """Returns whether a filter selects a resource.

    Args:
        text: Terms joined by AND; "" selects all resources.
        resource: Resource as the API returns it.

    Raises:
        RestError: The filter cannot be parsed.
    """
    return all(_holds(term.strip(), resource) for term in re.split(r"\s+AND\s+", text.strip()) if term.strip())


def paged(
    call: RestCall, key: str, found: Sequence[dict[str, Any]], *, is_filtered: bool = True
) -> dict[str, Any]:
    """Returns the requested page of the resources that the filter of a call selects."""
    if is_filtered:
        found = [one for one in found if matches(call.query.get("filter", ""), one)]
    shown, token = page(call, found, default=DEFAULT_PAGE, size="pageSize")
    return {key: shown, **token}


def listed(call: RestCall, key: str, parent: str, resources: Mapping[str, Listed]) -> Reply:
    """Returns the requested page of the resources below a parent.

    Args:
        call: The call.
        key: Field of the answer that holds the resources.
        parent: Full name of the parent.
        resources: All resources, by full name.
    """
    found = [one.resource() for name, one in resources.items() if name.startswith(f"{parent}/")]
    return json_reply(paged(call, key, found))


def _holds(term: str, resource: Mapping[str, Any]) -> bool:
    found = _TERM.fullmatch(term)
    if found is None:
        raise RestError(400, f"Invalid filter: {term!r}.")
    wanted, sign = (found["value"] or "").strip('"'), found["sign"]
    name, _, key = found["field"].partition(".")
    if name == "labels" and key:
        value = (resource.get("labels") or {}).get(key)
    elif not key and name in ("display_name", "displayName"):
        value = resource.get("displayName")
    elif not key and name == "state" and name in resource:
        value = resource[name]
    else:
        raise RestError(400, f"Invalid filter: the field {found['field']!r} is not supported.")
    if sign == "!=":
        return bool(value != wanted)
    if sign == ":" and wanted.endswith("*"):  # `display_name:"my_job_*"`
        return value is not None and str(value).startswith(wanted.removesuffix("*"))
    return value is not None if sign is None else bool(value == wanted)
