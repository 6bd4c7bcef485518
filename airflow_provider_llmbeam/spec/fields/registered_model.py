"""Names of models in the Model Registry of Vertex AI."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Self

#: Alias that one version of each model always has; a name without a version means it.
DEFAULT_ALIAS = "default"
_ALIAS = r"[a-z][a-zA-Z0-9-]{0,126}[a-z0-9]"
_NAME = (
    r"(?P<model>projects/[^/@\s]+/locations/[a-z0-9-]+/models/[A-Za-z0-9_-]+)"
    rf"(@(?P<version>[1-9][0-9]*|{_ALIAS}))?"
)


@dataclass(frozen=True)
class RegisteredModel:
    """A version of a registered model.

    Attributes:
        model: Resource name of the model, `projects/…/locations/…/models/…`, without the version.
        version: Number of the version, or an alias, which can move to another version at any time.
    """

    model: str
    version: str = DEFAULT_ALIAS

    @classmethod
    def read(cls, name: object) -> Self | None:
        """Reads `projects/…/locations/…/models/…`, with `@` and a version or without; `None` for anything else."""
        found = re.fullmatch(_NAME, name) if isinstance(name, str) else None
        return found and cls(found["model"], found["version"] or DEFAULT_ALIAS)

    @property
    def is_fixed(self) -> bool:
        """Whether the version is a number: an alias can move to another version."""
        return self.version.isdecimal()

    @property
    def project(self) -> str:
        """Id or number of the project."""
        return self.model.split("/")[1]

    @property
    def location(self) -> str:
        """Region."""
        return self.model.split("/")[3]

    def at(self, version: str) -> Self:
        """Returns another version of the same model."""
        return replace(self, version=version)

    def __str__(self) -> str:
        return f"{self.model}@{self.version}"


def is_alias(text: str) -> bool:
    """Returns whether a text can be an alias: 2 to 128 letters, digits and -, beginning with a-z."""
    return re.fullmatch(_ALIAS, text) is not None
