"""The address of a model's server, where an environment variable gives it, as for the provider's own client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.redaction import url_fault
from airflow_provider_llmbeam.spec.base import SpecModel, http_address
from airflow_provider_llmbeam.spec.model.model import Model, ModelApi

SpecT = TypeVar("SpecT", bound=SpecModel)


class _Log(Protocol):
    def info(self, message: str, /, *args: object) -> None: ...


def with_base_url(model: Model, environment: Mapping[str, str], log: _Log | None = None) -> Model:
    """Returns the model with the address of the environment, unless the spec or the connection gives one.

    Args:
        model: The model.
        environment: Environment variables of this process.
        log: Log for the address, and the variable that gives it.

    Raises:
        JobSpecError: The variable holds no address.
    """
    name = model.api.base_url_variable
    if name is None or not (address := environment.get(name, "").strip()):
        return model
    try:
        base_url = http_address(address)
    except ValueError as error:
        fault = str(error).partition(", as ")[0]
        got = "" if url_fault(address) else f"; got {address[:80]!r}"
        raise JobSpecError(
            f"`{name}` in the environment, the address of the {model.type} server: {fault}{got}. Nothing was sent "
            "or billed. Correct it, unset it, or set `model.base_url`."
        ) from None
    if log is not None:
        log.info("Requests go to %s, as `%s` is set and `model.base_url` is not.", base_url, name)
    return model.model_copy(update={"base_url": base_url})


def with_base_urls(value: SpecT, environment: Mapping[str, str], log: _Log | None = None) -> SpecT:
    """Returns a job, or another value, with the address of the environment in each of its models.

    A job whose guard, judge or other model keeps no address would keep its answers as those of the provider, see
    `JobPaths.journal_uri`, and its handler would ask the server of the environment.

    Args:
        value: The value; the models may be in its parts, e.g. in `safety.moderation`.
        environment: Environment variables of this process.
        log: Log for each address, and the variable that gives it.

    Raises:
        JobSpecError: A variable holds no address.
    """
    found: SpecT = _with_base_urls(value, environment, None if log is None else _Once(log))
    return found


class _Once:
    """Writes equal messages once."""

    def __init__(self, log: _Log) -> None:
        self._log = log
        self._written: set[tuple[object, ...]] = set()

    def info(self, message: str, /, *args: object) -> None:
        if (message, *args) not in self._written:
            self._written.add((message, *args))
            self._log.info(message, *args)


def _with_base_urls(part: Any, environment: Mapping[str, str], log: _Log | None) -> Any:
    match part:
        case SpecModel() if isinstance(getattr(part, "api", None), ModelApi):
            return with_base_url(part, environment, log)  # type: ignore[arg-type]
        case SpecModel():
            items = {name: getattr(part, name) for name in type(part).model_fields}
        case Mapping():
            items = dict(part)
        case _:
            return part
    changed = {
        name: new for name, old in items.items() if (new := _with_base_urls(old, environment, log)) is not old
    }
    if not changed:
        return part
    return part.model_copy(update=changed) if isinstance(part, SpecModel) else {**part, **changed}
