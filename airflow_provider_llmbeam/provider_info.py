"""Provider metadata for Airflow's discovery. A literal: importing this file loads nothing."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Returns the provider's metadata.

    `package-name` must be the normalised name of the distribution: with a wrong one every `airflow` command
    fails, `airflow version` included.
    """
    return {
        "package-name": "airflow-provider-llmbeam",
        "name": "LLM Beam",
        "description": "Run an LLM over a table: bucketed RunInference on Apache Beam, no row lost.",
        "integrations": [
            {"integration-name": "LLM Beam", "external-doc-url": "https://beam.apache.org", "tags": ["ai"]}
        ],
        "operators": [
            {
                "integration-name": "LLM Beam",
                "python-modules": [
                    "airflow_provider_llmbeam.operators.compare_inference",
                    "airflow_provider_llmbeam.operators.endpoint",
                    "airflow_provider_llmbeam.operators.estimate",
                    "airflow_provider_llmbeam.operators.evaluate_inference",
                    "airflow_provider_llmbeam.operators.inference_endpoint",
                    "airflow_provider_llmbeam.operators.model_registry",
                    "airflow_provider_llmbeam.operators.retry_failed_rows",
                    "airflow_provider_llmbeam.operators.review_answers",
                    "airflow_provider_llmbeam.operators.run_inference",
                    "airflow_provider_llmbeam.operators.sweep",
                    "airflow_provider_llmbeam.operators.sweep_batch_inference",
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": "LLM Beam",
                "python-modules": [
                    "airflow_provider_llmbeam.sensors.endpoint",
                    "airflow_provider_llmbeam.sensors.quota",
                ],
            }
        ],
        "hooks": [
            {
                "integration-name": "LLM Beam",
                "python-modules": [
                    "airflow_provider_llmbeam.hooks.cloud_run",
                    "airflow_provider_llmbeam.hooks.dataflow",
                    "airflow_provider_llmbeam.hooks.vertex_ai",
                    "airflow_provider_llmbeam.hooks.llmbeam",
                    "airflow_provider_llmbeam.quota.hook",
                ],
            }
        ],
        "triggers": [
            {
                "integration-name": "LLM Beam",
                "python-modules": [
                    "airflow_provider_llmbeam.triggers.job",
                    "airflow_provider_llmbeam.triggers.endpoint",
                    "airflow_provider_llmbeam.triggers.sensor",
                ],
            }
        ],
        "task-decorators": [
            {"class-name": "airflow_provider_llmbeam.operators.taskflow.llmbeam_task", "name": "llmbeam"}
        ],
        "extra-links": [
            "airflow_provider_llmbeam.operators.links.EndpointLink",
            "airflow_provider_llmbeam.operators.links.DataflowLink",
            "airflow_provider_llmbeam.operators.links.FlinkLink",
            "airflow_provider_llmbeam.operators.links.OutputLink",
            "airflow_provider_llmbeam.operators.links.ReportLink",
            "airflow_provider_llmbeam.operators.links.QuotaLink",
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
                },
            },
        },
        "connection-types": [
            {
                "connection-type": "llmbeam",
                "hook-class-name": "airflow_provider_llmbeam.hooks.llmbeam.LLMBeamHook",
                "hook-name": "LLM Beam",
                "ui-field-behaviour": {
                    "hidden-fields": ["schema", "port", "login"],
                    "relabeling": {"password": "API key", "host": "Base URL"},
                    "placeholders": {
                        "host": "https://… (empty: Google's own address)",
                        "password": "of the Gemini Developer API, or of an OpenAI-compatible server",
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
                },
            }
        ],
    }
