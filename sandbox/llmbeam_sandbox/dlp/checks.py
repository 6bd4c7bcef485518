"""What the service refuses in a request to `content:inspect`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llmbeam_sandbox.core.rest import RestCall, RestError
from llmbeam_sandbox.dlp.info_types import INFO_TYPES, LIKELIHOODS

MAX_REQUEST_BYTES = 524_288
"""Maximum size of a request. Source: cloud.google.com/sensitive-data-protection/limits ("0.5 MB")."""
MAX_VALUES = 50_000
"""Maximum number of values of a table, from the same source."""

_LOCATION = re.compile(r"global|us|eu|europe|asia|[a-z]+-[a-z]+\d{1,2}")


def checked_request(call: RestCall) -> dict[str, Any]:
    """Returns the fields of a request.

    Raises:
        RestError: It is too large, or is not JSON.
    """
    if len(call.body) > MAX_REQUEST_BYTES:
        raise RestError(400, f"Request payload size exceeds the limit: {MAX_REQUEST_BYTES} bytes.")
    return call.fields()


def checked_location(location: str) -> str:
    """Returns the location of a path.

    Raises:
        RestError: It is none.
    """
    if not _LOCATION.fullmatch(location):
        raise RestError(400, f"Location {location!r} is not supported.")
    return location


def checked_config(config: Mapping[str, Any]) -> tuple[list[str], str]:
    """Returns the infoTypes and the minimum likelihood of an `inspectConfig`.

    Raises:
        RestError: A name is unknown.
    """
    names = [str(each.get("name")) for each in config.get("infoTypes") or []]
    for name in names:
        if name not in INFO_TYPES:
            raise RestError(400, f'Invalid built-in info type name "{name}".')
    likelihood = config.get("minLikelihood") or "POSSIBLE"
    if isinstance(likelihood, int) and 0 < likelihood <= len(LIKELIHOODS):  # as the client of Google sends it
        likelihood = LIKELIHOODS[likelihood - 1]
    if likelihood not in LIKELIHOODS:
        raise RestError(400, f"Invalid value at 'inspect_config.min_likelihood': \"{likelihood}\"")
    return names or sorted(INFO_TYPES), likelihood


def checked_table(table: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Returns the columns and the rows of a table; an empty value is "".

    Raises:
        RestError: It has too many values, or a row has not one for each header.
    """
    headers = [str(each.get("name") or "") for each in table.get("headers") or []]
    if not all(headers) or len(set(headers)) < len(headers):
        raise RestError(400, "Table headers must have unique, non-empty names.")
    rows = [[_text(value) for value in row.get("values") or []] for row in table.get("rows") or []]
    for index, row in enumerate(rows):
        if len(row) != len(headers):
            raise RestError(400, f"Row {index} has {len(row)} values, but the table has {len(headers)} headers.")
    if len(headers) * len(rows) > MAX_VALUES:
        raise RestError(400, f"Too many values in the table: {len(headers) * len(rows)}; maximum is {MAX_VALUES}.")
    return headers, rows


def _text(value: Mapping[str, Any]) -> str:
    return "" if not value else str(next(iter(value.values())))
