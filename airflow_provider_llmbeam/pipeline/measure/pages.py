"""The pages of an estimate, an evaluation and a comparison, which Airflow shows at their tasks."""

from __future__ import annotations

import logging
from typing import Any

from pydantic import BaseModel

from airflow_provider_llmbeam.pipeline.reporting.html import render, title_of
from airflow_provider_llmbeam.pipeline.secrets import known_secrets
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.manifest import encode_page

_log = logging.getLogger(__name__)


def page_of(name: str, spec: JobSpec, found: BaseModel, uri: str, **words: Any) -> dict[str, Any] | None:
    """Returns the page of what a step has found, for the XCom of its task.

    Args:
        name: Name of its template, e.g. `evaluation`.
        spec: The job.
        found: What it has found, `report` in the template.
        uri: Address of a file that has it as well, for a page that is too large.
        words: Other values of the template, as plain data.

    Returns:
        See `encode_page`; `None` for a page with a defect, which must not fail a step that is paid for.
    """
    run = None if spec.airflow_run is None else spec.airflow_run.model_dump()
    values = {"title": title_of(spec.name, run), "kind": name, "report": found, "uri": uri, **words}
    try:
        return encode_page(render(name, known_secrets(spec.secret_variables), **values), uri)
    except Exception:  # noqa: BLE001 - see above
        _log.exception("The %s could not be rendered as a page; %r is complete.", name, uri)
        return None
