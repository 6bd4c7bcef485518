"""The plugin of Airflow with the pages "Inference", "Inference of the run" and "Inference history".

The pages are scripts without a build step. They read Airflow's REST API as the person who is signed in, and
nothing else, so that the plugin serves these files alone. Every process of Airflow imports this module.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.plugins_manager import AirflowPlugin
from starlette.staticfiles import StaticFiles

URL_PREFIX = "/llmbeam"
STATIC = Path(__file__).parent / "static"


def _page(name: str, script: str, destination: str, route: str) -> dict[str, Any]:
    # The script sets `globalThis[name]`, where Airflow looks for the page.
    return {
        "name": name,
        "bundle_url": f"{URL_PREFIX}/{script}",
        "destination": destination,
        "url_route": route,
    }


class LLMBeamPlugin(AirflowPlugin):
    """The pages of this package."""

    name = "llmbeam"
    fastapi_apps = [  # noqa: RUF012
        {"app": StaticFiles(directory=STATIC), "url_prefix": URL_PREFIX, "name": "LLM Beam"}
    ]
    react_apps = [  # noqa: RUF012
        _page("Inference", "inference.js", "task_instance", "inference"),
        _page("Inference of the run", "inference.js", "dag_run", "inference-run"),
        _page("Inference history", "history.js", "dag", "inference-history"),
    ]
