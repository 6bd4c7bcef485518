"""Moves aliases between the versions of a registered model.

The version that an alias had before is kept in the registry, under a second alias: a rollback, perhaps weeks later
and in another Dag, needs no record of the run that moved it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.fields.registered_model import RegisteredModel, is_alias


class RegistryHook(Protocol):
    """The requests to the Model Registry, see `hooks.vertex_ai.VertexAIHook`."""

    def get_registered_model(self, name: str) -> Any:
        """Returns a version by its full name; `None` if there is none."""

    def merge_version_aliases(self, name: str, aliases: list[str]) -> Any:
        """Moves aliases to a version."""


@dataclass(frozen=True, slots=True)
class AliasState:
    """An alias after a task.

    Attributes:
        model: Resource name of the model, without the version.
        alias: The alias.
        version: Number of the version that has the alias; `None` if no version has it.
        previous_version: Number of the version to which a rollback moves it; `None` if there is none.
        moved: Whether this task moved it.
    """

    model: str
    alias: str
    version: str | None
    previous_version: str | None
    moved: bool

    def plain(self) -> dict[str, Any]:
        """Returns the fields as plain JSON."""
        return asdict(self)


def previous_alias(alias: str) -> str:
    """Returns the alias of the version that had an alias before."""
    return f"{alias}-previous"


def check_alias(alias: str) -> None:
    """Checks an alias that is to be moved.

    Raises:
        JobSpecError: It is invalid.
    """
    if not is_alias(previous_alias(alias)):
        raise JobSpecError(
            "`alias`: must be 2 to 119 letters, digits and -, beginning with a-z, e.g. 'champion'; got "
            f"{alias!r}. No alias was moved."
        )


def resolve(hook: RegistryHook, model: RegisteredModel) -> RegisteredModel:
    """Returns a model with the number of its version.

    Raises:
        JobSpecError: There is no such version.
        CloudError: The request failed.
    """
    if (found := _find(hook, model)) is None:
        raise JobSpecError(f"`model`: the Model Registry has no '{model}'.")
    return found


def promote(hook: RegistryHook, model: RegisteredModel, alias: str) -> AliasState:
    """Moves an alias to a version; a second call changes nothing.

    Args:
        hook: Hook of the location of the model.
        model: The version.
        alias: The alias.

    Raises:
        JobSpecError: There is no such version.
        CloudError: A request failed.
    """
    resolve(hook, model)
    present = _find(hook, model.at(alias))
    moves = present != model
    if moves:
        # In this order: a try that ends between the two requests leaves the alias where it was.
        if present is not None:
            hook.merge_version_aliases(str(present), [previous_alias(alias)])
        hook.merge_version_aliases(str(model), [alias])
    return _state(hook, model, alias, moved=moves)


def roll_back(hook: RegistryHook, model: RegisteredModel, alias: str) -> AliasState:
    """Moves an alias from a version to the one that had it before; if another version has it, it stays there.

    Args:
        hook: Hook of the location of the model.
        model: The version that is to lose the alias.
        alias: The alias.

    Raises:
        JobSpecError: No other version had the alias before.
        CloudError: A request failed.
    """
    if _find(hook, model.at(alias)) != model:
        return _state(hook, model, alias, moved=False)
    before = _find(hook, model.at(previous_alias(alias)))
    if before is None or before == model:
        raise JobSpecError(
            f"`alias`: no other version of {model.model!r} had the alias {alias!r} before version "
            f"{model.version}: it would have the alias {previous_alias(alias)!r}. No alias was moved."
        )
    hook.merge_version_aliases(str(before), [alias])
    return _state(hook, model, alias, moved=True)


def _find(hook: RegistryHook, model: RegisteredModel) -> RegisteredModel | None:
    found = hook.get_registered_model(str(model))
    return None if found is None else model.at(str(found.version_id))


def _state(hook: RegistryHook, model: RegisteredModel, alias: str, *, moved: bool) -> AliasState:
    present, before = (_find(hook, model.at(one)) for one in (alias, previous_alias(alias)))
    version, previous = (None if one is None else one.version for one in (present, before))
    return AliasState(model.model, alias, version, previous, moved)
