"""The secrets of the emulated Secret Manager. No HTTP."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from llmbeam_sandbox.core.clock import Clock
from llmbeam_sandbox.core.rest import RestError


@dataclass(slots=True, kw_only=True)
class Secret:
    """A secret; each version has a payload and the time of its creation, the oldest first."""

    project: str
    name: str
    created_at: float
    fields: dict[str, Any]
    versions: list[tuple[bytes, float]] = field(default_factory=list)

    @property
    def path(self) -> str:
        """Full name."""
        return f"projects/{self.project}/secrets/{self.name}"


class SecretStore:
    """All secrets. Safe to use from any thread.

    Args:
        clock: Returns seconds since the epoch.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._secrets: dict[tuple[str, str], Secret] = {}

    def add(self, project: str, name: str, fields: dict[str, Any]) -> Secret:
        """Creates a secret without a version.

        Raises:
            RestError: It exists.
        """
        with self._lock:
            if (project, name) in self._secrets:
                raise RestError(409, f"Secret [projects/{project}/secrets/{name}] already exists.")
            secret = Secret(project=project, name=name, created_at=self._clock(), fields=fields)
            self._secrets[project, name] = secret
            return secret

    def add_version(self, secret: Secret, data: bytes) -> int:
        """Adds a version to a secret, and returns its number."""
        with self._lock:
            secret.versions.append((data, self._clock()))
            return len(secret.versions)

    def get(self, project: str, name: str) -> Secret:
        """Returns a secret.

        Raises:
            RestError: There is none of that name.
        """
        with self._lock:
            if (found := self._secrets.get((project, name))) is None:
                raise RestError(404, f"Secret [projects/{project}/secrets/{name}] not found or has no versions.")
            return found

    def of_project(self, project: str) -> list[Secret]:
        """Returns the secrets of a project."""
        with self._lock:
            return [secret for secret in self._secrets.values() if secret.project == project]

    def has(self, project: str, name: str, version: str) -> bool:
        """Returns whether a version of a secret exists; "latest" is any version."""
        with self._lock:
            found = self._secrets.get((project, name))
        return found is not None and number_of(found, version) is not None

    def has_secret(self, project: str, name: str) -> bool:
        """Returns whether a secret exists."""
        with self._lock:
            return (project, name) in self._secrets

    def clear(self) -> None:
        """Removes all secrets."""
        with self._lock:
            self._secrets.clear()


def number_of(secret: Secret, version: str) -> int | None:
    """Returns the number of a version, which may be "latest"; None when it does not exist."""
    count = len(secret.versions)
    number = count if version == "latest" else int(version) if version.isdecimal() else 0
    return number if 0 < number <= count else None
