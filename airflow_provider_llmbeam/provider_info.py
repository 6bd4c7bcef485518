"""Provider metadata for Airflow's discovery. Importing this file loads nothing."""

from __future__ import annotations

from typing import Any

_PACKAGE = "airflow_provider_llmbeam"
_NAME = "LLM Beam"


def _modules(*names: str) -> list[dict[str, Any]]:
    """Returns modules of this package as the metadata lists them."""
    return [{"integration-name": _NAME, "python-modules": [f"{_PACKAGE}.{name}" for name in names]}]


def _list_option(description: str, example: str) -> dict[str, str]:
    """Returns an option of the configuration that is a list, see `spec.allowed`."""
    return {
        "description": f"{description}. Items are separated by commas.",
        "version_added": "0.1.0",
        "type": "string",
        "example": example,
        "default": "",
    }


def get_provider_info() -> dict[str, Any]:
    """Returns the provider's metadata.

    `package-name` must be the normalised name of the distribution: with a wrong one every `airflow` command
    fails, `airflow version` included.
    """
    return {
        "package-name": "airflow-provider-llmbeam",
        "name": _NAME,
        "description": "Run an LLM over a table: bucketed RunInference on Apache Beam, no row lost.",
        "integrations": [
            {"integration-name": _NAME, "external-doc-url": "https://beam.apache.org", "tags": ["ai"]}
        ],
        "operators": _modules(
            "operators.compare_inference",
            "operators.endpoint",
            "operators.estimate",
            "operators.evaluate_inference",
            "operators.inference_endpoint",
            "operators.model_registry",
            "operators.retry_failed_rows",
            "operators.review_answers",
            "operators.run_inference",
            "operators.stream_inference",
            "operators.sweep",
            "operators.sweep_batch_inference",
        ),
        "sensors": _modules("sensors.endpoint", "sensors.quota"),
        "hooks": _modules("hooks.cloud_run", "hooks.dataflow", "hooks.vertex_ai", "hooks.llmbeam", "quota.hook"),
        "triggers": _modules("triggers.job", "triggers.endpoint", "triggers.sensor"),
        "task-decorators": [{"class-name": f"{_PACKAGE}.operators.taskflow.llmbeam_task", "name": "llmbeam"}],
        "extra-links": [
            f"{_PACKAGE}.operators.links.{name}Link"
            for name in ("Endpoint", "Dataflow", "Flink", "Output", "Report", "Quota")
        ],
        "config": {
            "llmbeam": {
                "description": "Settings of the LLM Beam provider.",
                "options": {
                    "deployment": {
                        "description": (
                            "Name of this Airflow: at most 40 of a-z, 0-9 and -. It is part of the names and "
                            "labels of jobs and endpoints on Google Cloud, so that two Airflows with the same "
                            "Dags in one project never cancel, adopt or delete what belongs to the other. If it "
                            "is empty, it is derived from `[api] base_url`, or else from `[core] fernet_key`."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "production",
                        "default": "",
                    },
                    "job_environment": {
                        "description": (
                            "Environment variables of the worker that the process of a job gets, besides those "
                            "that it needs by itself (docs/security.md): names, and prefixes that end in `*`, "
                            "separated by commas."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "AWS_*, KRB5CCNAME",
                        "default": "",
                    },
                    "allowed_functions": _list_option(
                        "Functions that a job may import and call although its Dag file does not name them: those "
                        "of templates, XComs and JSON files. A function in a Dag file needs no entry",
                        "acme.detectors:*, acme.scores:is_brief",
                    ),
                    "allowed_programs": _list_option(
                        "Programs, jars, container images, Flex Templates, job services and texts in "
                        "`runner.options` of a job that its Dag file does not name",
                        "/opt/prism/prism, europe-docker.pkg.dev/acme/llmbeam/*",
                    ),
                    "token_hosts": _list_option(
                        "Hosts that get the access and ID tokens of a job's Google credentials, over https, "
                        "besides those of Google: e.g. a proxy before Vertex AI",
                        "vertex.internal.example.com",
                    ),
                },
            },
        },
        "connection-types": [
            {
                "connection-type": "llmbeam",
                "hook-class-name": f"{_PACKAGE}.hooks.llmbeam.LLMBeamHook",
                "hook-name": _NAME,
                "ui-field-behaviour": {
                    "hidden-fields": ["schema", "port"],
                    "relabeling": {"password": "API key", "host": "Base URL", "login": "Client ID"},
                    "placeholders": {
                        "host": "https://… (empty: Google's own address)",
                        "login": "for OAuth alone, whose secret is the API key",
                        "password": "of the provider or the server of the model",
                    },
                },
                "conn-fields": {
                    "project": {
                        "label": "Google Cloud project",
                        "description": "Given, Gemini is asked through Vertex AI and this project is billed.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "location": {
                        "label": "Location",
                        "description": "Region of Vertex AI, or `global`.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "usage_tier": {
                        "label": "Usage tier",
                        "description": "Of your organisation in Standard PayGo: 1, 2 or 3, or the tokens per "
                        "minute of a custom one.",
                        "schema": {"type": ["integer", "null"]},
                    },
                },
            }
        ],
    }
