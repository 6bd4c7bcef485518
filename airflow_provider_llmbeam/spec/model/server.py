"""The server that answers a model's requests: its address, and the answers that it may share with others."""

from __future__ import annotations

import ipaddress
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar
from urllib.parse import quote, urlsplit

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.redaction import url_fault
from airflow_provider_llmbeam.spec.base import SpecModel, http_address
from airflow_provider_llmbeam.spec.model.model import Model, ModelApi

#: `provider`: an address of the provider of the API; `custom`: any other address; `loopback`: this machine.
ServerKind = Literal["provider", "custom", "loopback"]

#: Variable with which the sandbox announces that its proxy stands in for Google's hosts.
SANDBOX_VARIABLE = "LLMBEAM_SANDBOX_URL"

#: Domains of the endpoints that this package provisions, with a new address each time.
_PROVISIONED = ("vertexai.goog", "run.app")
#: An address whose host all clients read alike: of `https://a\@b/`, some take `a`, and some `b`.
_HTTPS = re.compile(r"https://([A-Za-z0-9.-]+)(?::[0-9]+)?(?:/|$)")
_DEFAULT_PORTS = {"http": 80, "https": 443}

SpecT = TypeVar("SpecT", bound=SpecModel)


@dataclass(frozen=True, slots=True)
class Server:
    """A model server.

    Attributes:
        kind: Kind of its address.
        origin: Its normalised origin, e.g. `https://api.openai.com:443`; empty for `echo`, which has no server.
    """

    kind: ServerKind
    origin: str

    def __str__(self) -> str:
        return f"{self.kind} ({self.origin})" if self.origin else self.kind

    def namespace(self, *, is_shared: bool) -> str:
        """Returns a suffix for the directory of a journal that keeps its answers apart from those of others.

        A server for development answers under the name of any model, and its answers would otherwise be used by
        the next run against the real one. Those of a provider have no suffix.

        Args:
            is_shared: Whether other jobs use the directory. A job of its own keeps its answers when its server
                moves to another address; jobs that share answers may mean different servers.
        """
        match self.kind:
            case "provider":
                return ""
            case "custom" if is_shared:
                return f"@{quote(self.origin.replace('://', '-'), safe='')}"
            case kind:
                return f"@{kind}"


def server_of(model: Model, environment: Mapping[str, str]) -> Server:
    """Returns the server of a model.

    Args:
        model: The model.
        environment: Environment variables of this process. Where the sandbox's proxy stands in for Google's hosts,
            every server is of kind `loopback`: the sandbox answers, or nobody.
    """
    if not model.address:
        return Server("provider", "")
    if SANDBOX_VARIABLE in environment:
        return Server("loopback", environment[SANDBOX_VARIABLE])
    try:
        parts = urlsplit(model.address)
        host = (parts.hostname or "").rstrip(".")
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
    except ValueError:  # no request reaches it
        return Server("custom", "an invalid address")
    origin = f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    if is_loopback(host):
        return Server("loopback", origin)
    is_provider = is_below(model.address, (*model.api.domains, *_PROVISIONED))
    return Server("provider" if is_provider else "custom", origin)


def is_below(address: str, domains: Iterable[str]) -> bool:
    """Whether an address is https, and its host one of some domains, or below one."""
    if (found := _HTTPS.match(address)) is None:
        return False
    return f".{found[1].lower().rstrip('.')}".endswith(tuple(f".{name}" for name in domains))


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    if host == "localhost" or host.endswith(".localhost"):  # RFC 6761, 6.3
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


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
            f"`{name}` in the environment, the address of the {model.type} server: {fault}{got}. "
            "Correct it, unset it, or set `model.base_url`."
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
        case tuple():
            new = tuple(_with_base_urls(each, environment, log) for each in part)
            return part if all(map(operator.is_, new, part)) else new
        case _:
            return part
    changed = {
        name: new for name, old in items.items() if (new := _with_base_urls(old, environment, log)) is not old
    }
    if not changed:
        return part
    return part.model_copy(update=changed) if isinstance(part, SpecModel) else {**part, **changed}
