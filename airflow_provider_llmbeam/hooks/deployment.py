"""Name of this Airflow deployment, by which its jobs and endpoints differ from those of another Airflow."""

from __future__ import annotations

import hashlib
import re
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.fields.names import is_deployment_name
from airflow_provider_llmbeam.spec.fields.text import from_text

OPTION = "[llmbeam] deployment"
#: Hosts of a `[api] base_url` that many deployments share.
_LOCAL_HOSTS = frozenset({"", "localhost", "127.0.0.1", "::1", "0.0.0.0"})
#: A key. Without one, the Task SDK of Airflow 3.2 and later returns "{FERNET_KEY}", the same on every machine.
_FERNET_KEY = re.compile(r"[A-Za-z0-9_-]{43}=")


def deployment_name(option: str, base_url: str, fernet_key: str) -> str:
    """Returns the name of a deployment from its configuration; empty if nothing tells it from another one.

    Args:
        option: `[llmbeam] deployment`.
        base_url: `[api] base_url`, the public address of one deployment, unless it is local.
        fernet_key: `[core] fernet_key`, or several separated by commas while they are rotated, newest first.

    Raises:
        JobSpecError: `option` is not a valid name.
    """
    if option:
        if not is_deployment_name(option):
            raise JobSpecError(
                f"`{OPTION}`: expected at most 40 of a-z, 0-9 and -, beginning with a letter; got {option!r}."
            )
        return option
    if place := _public_place(base_url):
        readable = re.sub(r"[^a-z0-9]+", "-", place.lower()).strip("-")[:26].strip("-")
        return f"at-{readable}-{_digest(place)}"
    # The oldest key: adding a new one does not change the name.
    oldest = fernet_key.rpartition(",")[2].strip()
    return f"airflow-{_digest(oldest)}" if _FERNET_KEY.fullmatch(oldest) else ""


def _public_place(url: str) -> str:
    """Returns host, port and path of a URL; empty if it is local or invalid."""
    try:
        address = urlsplit(url)
    except ValueError:
        return ""
    host_and_port = address.netloc.rpartition("@")[2]
    return "" if (address.hostname or "") in _LOCAL_HOSTS else f"{host_and_port}{address.path.rstrip('/')}"


def own_deployment() -> str:
    """Returns the name of this deployment; empty if nothing tells it from another one.

    Raises:
        JobSpecError: `[llmbeam] deployment` is not a valid name.
    """
    from airflow.providers.common.compat.sdk import conf

    return deployment_name(
        conf.get("llmbeam", "deployment", fallback="") or "",
        conf.get("api", "base_url", fallback="") or "",
        conf.get("core", "fernet_key", fallback="") or "",
    )


def require_deployment() -> str:
    """Returns the name of this deployment, which resources on Google Cloud need.

    Raises:
        JobSpecError: Nothing tells this deployment from another one.
    """
    if name := own_deployment():
        return name
    raise JobSpecError(
        f"`{OPTION}`: this Airflow has no name of its own, since neither this option nor a public `[api] "
        "base_url` nor `[core] fernet_key` is set. Another Airflow with the same Dags in the same project would "
        "cancel its jobs and delete its endpoints. Set AIRFLOW__LLMBEAM__DEPLOYMENT, "
        "e.g. to 'production', for all components of this Airflow."
    )


def deployment_names(deployments: Any) -> tuple[str, ...]:
    """Returns the names of deployments that a sweeper was given, perhaps as a text that Airflow rendered.

    Raises:
        JobSpecError: It is not a list, or one is not a name: jobs that no Airflow started belong to no deployment.
    """
    names = from_text(deployments)
    if names is None:
        return ()
    if not isinstance(names, list | tuple | set | frozenset) or not all(
        isinstance(name, str) and is_deployment_name(name) for name in names
    ):
        raise JobSpecError(
            "`deployments` must be a list of names, each at most 40 of a-z, 0-9 and -, beginning with a letter; "
            f"got {deployments!r}."
        )
    return tuple(names)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]
