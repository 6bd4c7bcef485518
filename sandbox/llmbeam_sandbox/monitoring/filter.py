"""Filters of Cloud Monitoring: `metric.type = "…" AND resource.labels.location = "…"`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_TERM = re.compile(
    r"(?P<side>metric|resource)\.(?:(?P<type>type)|labels?\.(?P<quote>\"?)(?P<label>\w+)(?P=quote))"
    r"\s*=\s*\"(?P<value>(?:[^\"\\]|\\.)*)\""
)
_AND = re.compile(r"\s+AND\s+|\s+", re.IGNORECASE)
_FIELD = re.compile(r"(metric|resource)\.(?:(type)|labels?\.(\"?)(\w+)\3)")
_SUPPORTED = (
    'one metric.type = "…", and maybe resource.type = "…", metric.labels.X = "…" and resource.labels.X = "…", '
    "joined by AND"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The series that a filter selects.

    Attributes:
        metric_type: Type of the metric.
        resource_type: Type of the resource; None is any.
        labels: Required labels of the metric.
        resource: Required labels of the resource.
    """

    metric_type: str
    resource_type: str | None
    labels: Mapping[str, str]
    resource: Mapping[str, str]

    def matches(self, labels: Mapping[str, str], resource: Mapping[str, str]) -> bool:
        """Returns whether a series with these labels is selected."""
        return all(labels.get(name) == value for name, value in self.labels.items()) and all(
            resource.get(name) == value for name, value in self.resource.items()
        )


def read_filter(text: str) -> Selection:
    """Reads a filter.

    Raises:
        ValueError: It names no metric type, or has a part that is not emulated.
    """
    types: dict[str, str] = {}
    labels: dict[str, dict[str, str]] = {"metric": {}, "resource": {}}
    position, text = 0, text.strip()
    while position < len(text):
        term = _TERM.match(text, position)
        if term is None:
            raise ValueError(
                f'Field filter had an invalid value of "{text}": the sandbox emulates {_SUPPORTED}; it cannot '
                f'read on from "{text[position:]}".'
            )
        value = re.sub(r"\\(.)", r"\1", term["value"])
        known = types if term["type"] else labels[term["side"]]
        if known.setdefault(term["side"] if term["type"] else term["label"], value) != value:
            raise ValueError(
                f'Field filter had an invalid value of "{text}": {term[0]} contradicts what is before.'
            )
        separator = _AND.match(text, term.end())
        position = separator.end() if separator else term.end()
        if separator is None and position < len(text):
            raise ValueError(f'Field filter had an invalid value of "{text}": expected AND after {term[0]}.')
    if "metric" not in types:
        raise ValueError(
            f'Field filter had an invalid value of "{text}": must specify a restriction on "metric.type" in the '
            'filter; see "https://cloud.google.com/monitoring/api/resources" for a list of available metrics.'
        )
    return Selection(
        metric_type=types["metric"],
        resource_type=types.get("resource"),
        labels=labels["metric"],
        resource=labels["resource"],
    )


def read_field(text: str) -> tuple[str, str]:
    """Reads a field to group by: returns "metric" or "resource", and the label, or "type".

    Raises:
        ValueError: It is neither a label nor a type.
    """
    found = _FIELD.fullmatch(text)
    if found is None:
        raise ValueError(
            f'Field aggregation.groupByFields had an invalid value of "{text}": the sandbox emulates '
            "metric.labels.X and resource.labels.X."
        )
    return found[1], found[2] or found[4]
