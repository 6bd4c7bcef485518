"""Name of the Airflow deployment that owns a job or an endpoint."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

#: Label of every resource on Google Cloud: name of the Airflow deployment that created it.
DEPLOYMENT_LABEL = "llmbeam-deployment"
#: Characters that labels of Google Cloud allow.
_PATTERN = r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?"

#: Name of a deployment; empty for a job that no Airflow started.
DeploymentName = Annotated[str, Field(pattern=rf"^({_PATTERN})?$")]


def is_deployment_name(text: str) -> bool:
    """Whether a text may be the name of a deployment: at most 40 of a-z, 0-9 and -, beginning with a letter."""
    return re.fullmatch(_PATTERN, text) is not None
