"""TLS connections that all pollers of one process share."""

from __future__ import annotations

import os
import socket
from functools import cache
from typing import Any, Self, TypeVar

from requests import Session
from urllib3.connection import HTTPConnection

from airflow_provider_llmbeam.transport.redirects import DirectAdapter

SessionT = TypeVar("SessionT", bound=Session)

#: Hosts whose connections are kept: Monitoring, Cloud Quotas, tokens, and a model's in each of its locations.
_HOSTS = 32
#: Connections kept to one host: one per concurrent poll (`triggers.base`). Further ones are closed after use.
_CONNECTIONS = 64
#: Idle time after which a keep-alive packet is sent: NAT gateways drop idle connections, the quickest after
#: 240 s (learn.microsoft.com/azure/nat-gateway/nat-gateway-resource), and then a request hangs.
_IDLE_SECONDS = 45


def with_shared_connections(session: SessionT) -> SessionT:
    """Lets a session use the TLS connections of this process, and refuse redirects.

    It keeps its own cookies and headers.

    A connection of its own costs each poller 14 ms of CPU and 1 MB, for the certificate authorities that it
    reads (certifi 2026.10, OpenSSL 3.0), and an open file.

    Returns:
        The session.
    """
    session.mount("https://", _adapter(os.getpid()))
    session.mount("http://", DirectAdapter())
    return session


class _SharedAdapter(DirectAdapter):
    """Keeps its connections when a session is closed, since other sessions use them. Thread-safe."""

    def close(self) -> None:
        """Does nothing."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # google-auth 2.62 copies its token request for a thread that looks up the trust boundary of an account.
        return self

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs, socket_options=_socket_options())

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        return super().proxy_manager_for(proxy, **kwargs, socket_options=_socket_options())


@cache
def _adapter(pid: int) -> _SharedAdapter:
    """Returns the adapter of this process: a fork must not write to the connections of its parent."""
    return _SharedAdapter(pool_connections=_HOSTS, pool_maxsize=_CONNECTIONS)


def _socket_options() -> list[tuple[int, int, int]]:
    options = [*HTTPConnection.default_socket_options, (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    # macOS names the first option differently, and does not always have the second.
    for name in ("TCP_KEEPIDLE", "TCP_KEEPALIVE", "TCP_KEEPINTVL"):
        if (option := getattr(socket, name, None)) is not None:
            options.append((socket.IPPROTO_TCP, option, _IDLE_SECONDS))
    return options
