"""Models of the emulated Model Registry, with their versions and aliases. No HTTP."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from llmbeam_sandbox.core.clock import timestamp
from llmbeam_sandbox.core.rest import RestError
from llmbeam_sandbox.models.catalog import Served

#: Alias that exactly one version of each model has; a name without a version means it.
DEFAULT = "default"
_ALIAS = re.compile(r"[a-z][a-zA-Z0-9-]{0,126}[a-z0-9]")


@dataclass(kw_only=True)
class ModelVersion:
    """A version of a model.

    Attributes:
        name: Full name of the model.
        id: Number of the version.
        fields: Fields as uploaded, without aliases.
        served: Model that its container serves.
        created_at: Time of creation, in seconds since the epoch.
    """

    name: str
    id: str
    fields: dict[str, Any]
    served: Served
    created_at: float


@dataclass(kw_only=True)
class Model:
    """A model with at least one version.

    Attributes:
        name: Full name.
        versions: Versions by their number.
        aliases: Number of the version that has an alias, by alias.
    """

    name: str
    versions: dict[str, ModelVersion] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)

    def add(self, fields: dict[str, Any], served: Served, at: float) -> ModelVersion:
        """Adds a version, and moves the aliases that it is uploaded with to it."""
        aliases = fields.pop("versionAliases", ())
        own = str(len(self.versions) + 1)
        self.versions[own] = ModelVersion(name=self.name, id=own, fields=fields, served=served, created_at=at)
        self.aliases |= dict.fromkeys(aliases, own)
        self.aliases.setdefault(DEFAULT, own)
        return self.versions[own]

    def find(self, version: str) -> ModelVersion | None:
        """Returns the version of a number or of an alias; the default one for an empty text."""
        return self.versions.get(self.aliases.get(version or DEFAULT, version))

    def merge(self, version: ModelVersion, changes: Sequence[str]) -> None:
        """Moves aliases to a version; those that begin with "-" are removed from it.

        Raises:
            RestError: An alias is invalid, or the model would be left without a default version.
        """
        check_aliases([change.removeprefix("-") for change in changes])
        if f"-{DEFAULT}" in changes and self.aliases[DEFAULT] == version.id:
            raise RestError(
                400,
                f"The alias {DEFAULT!r} cannot be removed from {self.name}@{version.id}: a Model has exactly one "
                "default version.",
                "FAILED_PRECONDITION",
            )
        for change in changes:
            alias = change.removeprefix("-")
            if alias == change:
                self.aliases[alias] = version.id
            elif self.aliases.get(alias) == version.id:
                del self.aliases[alias]

    def resource(self) -> dict[str, Any]:
        """Returns the default version as the API returns it."""
        return self.resource_of(self.versions[self.aliases[DEFAULT]])

    def resource_of(self, version: ModelVersion) -> dict[str, Any]:
        """Returns a version as the API returns it."""
        created = timestamp(next(iter(self.versions.values())).created_at)
        at = timestamp(version.created_at)
        return {
            **version.fields,
            "name": self.name,
            "versionId": version.id,
            "versionAliases": [alias for alias, own in self.aliases.items() if own == version.id],
            "createTime": created,
            "updateTime": at,
            "versionCreateTime": at,
            "versionUpdateTime": at,
            "supportedDeploymentResourcesTypes": ["DEDICATED_RESOURCES"],
        }


def check_aliases(aliases: Sequence[str]) -> None:
    """Checks aliases of a version.

    Raises:
        RestError: One is invalid, e.g. a number.
    """
    for alias in aliases:
        if not _ALIAS.fullmatch(alias):
            raise RestError(400, f"The version alias {alias!r} is invalid: it must match {_ALIAS.pattern!r}.")
