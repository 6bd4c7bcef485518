"""The account that sends the requests of a job, as far as it is known without a request."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.runner import DataflowRunner, workers_have_keys

_IMPERSONATED = re.compile(r"/serviceAccounts/([^:/]+):")


def account_of(spec: JobSpec) -> str | None:
    """Returns the service account of a job.

    It is that of the Dataflow workers, or the one that the file of the application default credentials names.
    `None` for a user, for the account of a machine, and for an API key, whose owner only Google knows.
    """
    if isinstance(spec.runner, DataflowRunner):
        return spec.runner.service_account
    if workers_have_keys(spec.runner):
        return None
    if not (path := os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")):
        return None
    try:
        found = json.loads(Path(path).read_bytes())
        impersonated = _IMPERSONATED.search(str(found.get("service_account_impersonation_url", "")))
        account = impersonated[1] if impersonated else found.get("client_email")
    except (OSError, ValueError, AttributeError):
        return None
    return account if isinstance(account, str) else None
