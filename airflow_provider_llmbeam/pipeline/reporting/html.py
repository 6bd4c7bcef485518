"""Pages for people: no script, nothing that is fetched; all texts are escaped, and without secrets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

import jinja2

from airflow_provider_llmbeam.redaction import redact
from airflow_provider_llmbeam.spec.protocol.counts import duration, usd

#: Maximum length of a value in a line of text, in characters.
_MAX_CHARACTERS = 300


def render(name: str, secrets: Iterable[str] = (), **values: Any) -> str:
    """Returns a page.

    Args:
        name: Name of its template in this package, which extends `page.html.jinja`.
        secrets: Values that no page shows, see `redact`.
        values: Values of the template: its `title` and `kind`, and those that it names.
    """
    return template(name).render(values, secrets=tuple(secrets))


def template(name: str) -> jinja2.Template:
    """Returns a template, which is compiled once."""
    return _environment().get_template(f"{name}.html.jinja")


def title_of(name: str, run: Mapping[str, Any] | None) -> str:
    """Returns the title of what a job has done: its task and Dag run, or without Airflow its name.

    Args:
        name: Name of the job.
        run: The task instance, `airflow_run` of the spec as plain data; `None` without Airflow.
    """
    if run is None:
        return name
    mapped = f" [{run['map_index']}]" if run["map_index"] >= 0 else ""
    return f"{run['dag_id']} · {run['task_id']}{mapped} · {run['run_id']}"


@jinja2.pass_context
def _show(context: jinja2.runtime.Context, value: Any) -> Any:
    return redact(value, context["secrets"]) if type(value) is str else value


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("airflow_provider_llmbeam.pipeline.reporting", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_show,
    )
    environment.filters |= {
        "usd": lambda value: "–" if value is None else usd(value),
        "duration": lambda value: "–" if value is None else duration(value),
        "seconds": seconds,
        "moment": _moment,
        "count": lambda value: "–" if value is None else f"{value:,.0f}",
        "short": _short,
        "percent": percent,
        "figure": _figure,
        "shorten": shorten,
        "words": lambda text: text.replace("_", " "),
    }
    return environment


def seconds(value: float | None) -> str:
    """Formats a latency in seconds."""
    return "–" if value is None else f"{value * 1000:,.0f} ms" if value < 1 else f"{value:,.1f} s"


def shorten(value: Any) -> str:
    """Returns a value as one short line."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split())
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 1]}…"


def percent(part: float | None, whole: float = 1.0) -> str:
    """Formats a share; small and large ones with more digits."""
    if part is None or not whole:
        return "–"
    share = part / whole
    return (
        f"{share:.0%}" if share in (0, 1) else f"{share:.2%}" if share < 0.01 or share > 0.99 else f"{share:.1%}"
    )


def _moment(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _short(value: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value:.3g}"


def _figure(value: float | None, name: str) -> str:
    if value is None:
        return "–"
    if name.endswith("_ratio"):
        return percent(value)
    if name.endswith("_usd"):
        return usd(value)
    return duration(value) if name.endswith("_seconds") else f"{value:,.0f}"
