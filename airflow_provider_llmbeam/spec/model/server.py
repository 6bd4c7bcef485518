"""The server that answers a model's requests, and the answers that it may share with other servers."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote, urlsplit

from airflow_provider_llmbeam.spec.model.model import Model

#: `provider`: an address of Google or OpenAI; `custom`: any other address; `loopback`: this machine.
ServerKind = Literal["provider", "custom", "loopback"]

#: Variable with which the sandbox announces that its proxy stands in for Google's hosts.
SANDBOX_VARIABLE = "LLMBEAM_SANDBOX_URL"

_DEFAULT_PORTS = {"http": 80, "https": 443}


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
    if _is_loopback(host):
        return Server("loopback", origin)
    is_provider = parts.scheme == "https" and f".{host}".endswith(tuple(f".{name}" for name in model.api.domains))
    return Server("provider" if is_provider else "custom", origin)


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):  # RFC 6761, 6.3
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified
