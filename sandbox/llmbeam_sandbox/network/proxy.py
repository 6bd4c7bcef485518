"""A proxy that stands in for Google's hosts and that of OpenAI, and refuses all others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from llmbeam_sandbox.core.access import Access
from llmbeam_sandbox.network.credentials import write_service_account
from llmbeam_sandbox.network.loop_thread import HOST, LoopThread, Server, stop_accepting

log = logging.getLogger(__name__)

DEFAULT_PROJECT = "llmbeam-sandbox"
SERVED_HOSTS = frozenset(
    {
        "aiplatform.googleapis.com",
        "api.anthropic.com",
        "api.openai.com",
        "bigquery.googleapis.com",
        "cloudkms.googleapis.com",
        "cloudquotas.googleapis.com",
        "cloudresourcemanager.googleapis.com",
        "compute.googleapis.com",
        "dataflow.googleapis.com",
        "dlp.googleapis.com",
        "generativelanguage.googleapis.com",
        "iam.googleapis.com",
        "iamcredentials.googleapis.com",
        "monitoring.googleapis.com",
        "oauth2.googleapis.com",
        "pubsub.googleapis.com",
        "run.googleapis.com",
        "secretmanager.googleapis.com",
        "serviceusage.googleapis.com",
        "storage.googleapis.com",
        "www.googleapis.com",
    }
)
SERVED_SUFFIXES = (
    "-aiplatform.googleapis.com",
    # Endpoints in peered networks, over plain HTTP, and by Private Service Connect.
    ".aiplatform.googleapis.com",
    ".p.vertexai.goog",
    ".prediction.vertexai.goog",
    ".run.app",
    # Regional hosts of Cloud Run.
    "-run.googleapis.com",
)
GRPC_HOSTS = frozenset({"dataflow.googleapis.com", "pubsub.googleapis.com"})
"""Hosts whose clients use gRPC when they choose HTTP/2."""
NEEDS_PACKAGES = "The proxy needs other packages: `pip install cryptography pysocks`."
_PORT = "443"
_PLAIN_SUFFIX = ".aiplatform.googleapis.com"
_HTTP2 = "h2"
_MAX_HEAD_BYTES = 65_536
_CHUNK_BYTES = 262_144
_CLOSE_SECONDS = 2.0


class Upstream(Protocol):
    """The sandbox behind a proxy."""

    @property
    def port(self) -> int:
        """Port of the sandbox."""

    @property
    def url(self) -> str:
        """Address of the sandbox."""

    @property
    def refused_hosts(self) -> Counter[str]:
        """Number of refused requests by host."""

    @property
    def access(self) -> Access:
        """Who may use the services of the sandbox."""

    @property
    def job_environments(self) -> list[dict[str, str]]:
        """Environment variables of Dataflow jobs, which get the last ones."""

    def start_grpc(self) -> int:
        """Starts to serve gRPC, unless it is served already, and returns its port."""


class Proxy(Server):
    """Forwards requests for Google's hosts and that of OpenAI to a sandbox; a context manager.

    Any other host is refused with 403 and counted in the `refused_hosts` of the sandbox's statistics.
    TLS ends here, so that unmodified clients need nothing but `environment()`.

    Args:
        sandbox: A running sandbox.
        port: Port of the proxy; 0 selects a free one.
        project: Project of the service account in the credentials of clients.
    """

    __test__ = False

    def __init__(self, sandbox: Upstream, *, port: int = 0, project: str = DEFAULT_PROJECT) -> None:
        self.project = project
        self._sandbox = sandbox
        self._port = port
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._thread = LoopThread("llmbeam-proxy", self._serve)
        self._context: Callable[..., ssl.SSLContext] | None = None
        self._key: Callable[[str], bool] = lambda _: False

    @property
    def url(self) -> str:
        """Address for `HTTPS_PROXY`."""
        return f"http://{HOST}:{self._port}"

    @property
    def directory(self) -> Path:
        """Directory of certificates and credentials while it runs.

        Raises:
            RuntimeError: It is not running.
        """
        if self._directory is None:
            raise RuntimeError("The proxy is not running; start it first.")
        return Path(self._directory.name)

    def environment(self) -> dict[str, str]:
        """Returns the variables with which a process reaches the sandbox in place of Google.

        Which client reads which, all verified with the versions of `constraints.txt`: requests
        (google-cloud-*, google-auth) `REQUESTS_CA_BUNDLE`; httpx, aiohttp and Python's ssl
        `SSL_CERT_FILE`; httplib2 (Beam's BigQuery, google-api-python-client) `HTTPLIB2_CA_CERTS`;
        curl `CURL_CA_BUNDLE`. Beam and aiohttp read the proxies in lower case.
        """
        authority = str(self.directory / "ca.pem")
        proxies = {"http_proxy": self.url, "https_proxy": self.url, "no_proxy": "127.0.0.1,localhost"}
        bundles = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "HTTPLIB2_CA_CERTS")
        return {
            **proxies,
            **{name.upper(): value for name, value in proxies.items()},
            **dict.fromkeys((*bundles, "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"), authority),
            "GOOGLE_APPLICATION_CREDENTIALS": str(self.directory / "credentials.json"),
            "GOOGLE_CLOUD_PROJECT": self.project,
            "GOOGLE_API_KEY": "sandbox",
            # By this the answers of the sandbox are kept apart from those of Google.
            "LLMBEAM_SANDBOX_URL": self._sandbox.url,
            "NO_GCE_CHECK": "true",
            "AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT": json.dumps(
                {"conn_type": "google_cloud_platform", "extra": {"project": self.project}}
            ),
        }

    def start(self) -> None:
        """Starts to serve; returns when connections are accepted.

        Raises:
            RuntimeError: It is running already.
            ImportError: The extra is not installed.
            OSError: The port is in use.
        """
        if self._thread.is_running:
            raise RuntimeError(f"The proxy is already running on {self.url}; stop it first.")
        self._directory = tempfile.TemporaryDirectory(prefix="llmbeam-sandbox-")
        try:
            self._prepare(self.directory)
            self._port = self._thread.start()
        except BaseException:
            self._directory.cleanup()
            self._directory = None
            raise
        self._sandbox.access.keys.append(self._key)
        self._sandbox.job_environments.append(self.environment())

    def stop(self) -> None:
        """Drops all connections and removes the certificates; does nothing when it is not running."""
        if not self._thread.is_running or self._directory is None:
            return
        self._sandbox.job_environments.remove(self.environment())
        self._sandbox.access.keys.remove(self._key)
        self._thread.stop()
        self._directory.cleanup()
        self._directory = None

    def _prepare(self, directory: Path) -> None:
        try:
            from llmbeam_sandbox.network.certificates import CertificateAuthority

            self._context = CertificateAuthority(directory).context
            self._key = write_service_account(directory / "credentials.json", self.project)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(NEEDS_PACKAGES, name=error.name) from error

    async def _serve(self, ready: Callable[[int], None], stopping: asyncio.Event) -> None:
        tasks: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._connection(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            # Not in a `finally` of the task, which does not run if it is cancelled before its first step.
            task.add_done_callback(lambda _: _abort(writer))

        with socket.create_server((HOST, self._port)) as listener:
            server = await asyncio.start_server(accept, sock=listener, limit=_MAX_HEAD_BYTES)
            ready(listener.getsockname()[1])
            await stopping.wait()
            await stop_accepting(listener)
            server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Clients that disconnect, or do not trust the authority, need no log line.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await self._forward(reader, writer)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        verb, target, *_ = head.split(" ", 2)
        host, _, port = target.rpartition(":") if verb == "CONNECT" else (_host(target), "", "")
        if verb != "CONNECT" and host.lower().endswith(_PLAIN_SUFFIX):
            from_sandbox, to_sandbox = await asyncio.open_connection(HOST, self._sandbox.port)
            to_sandbox.write(head.encode("latin-1"))
            await self._exchange(reader, writer, from_sandbox, to_sandbox)
            return
        if verb != "CONNECT" or port != _PORT or not is_served(host):
            self._sandbox.refused_hosts[host or target] += 1
            writer.write(_refusal(host))
            await _close(writer)
            return
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await writer.drain()
        assert self._context is not None, "set before the thread starts"
        await writer.start_tls(self._context(host.lower(), has_http2=host.lower() in GRPC_HOSTS))
        from_sandbox, to_sandbox = await asyncio.open_connection(HOST, await self._port_for(writer))
        await self._exchange(reader, writer, from_sandbox, to_sandbox)

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        from_sandbox: asyncio.StreamReader,
        to_sandbox: asyncio.StreamWriter,
    ) -> None:
        try:
            await _relay(
                asyncio.create_task(_copy(reader, to_sandbox, writer.get_extra_info("socket"))),
                asyncio.create_task(_copy(from_sandbox, writer)),
            )
        finally:
            to_sandbox.transport.abort()
        await _close(writer)

    async def _port_for(self, writer: asyncio.StreamWriter) -> int:
        if writer.get_extra_info("ssl_object").selected_alpn_protocol() != _HTTP2:
            return self._sandbox.port
        # The first client starts it: its packages take a second to import.
        try:
            return await asyncio.to_thread(self._sandbox.start_grpc)
        except ModuleNotFoundError as error:
            log.error("%s", error)
            raise ConnectionAbortedError(str(error)) from error


def is_served(host: str) -> bool:
    """Returns whether the sandbox stands in for a host."""
    return host.lower() in SERVED_HOSTS or host.lower().endswith(SERVED_SUFFIXES)


async def _relay(*directions: asyncio.Task[None]) -> None:
    """Copies until one direction ends, so that a client notices the end of an incomplete answer.

    Raises:
        OSError: A connection was lost, not closed.
    """
    try:
        done, _ = await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        for direction in done:
            direction.result()
    finally:
        for direction in directions:
            direction.cancel()
        await asyncio.gather(*directions, return_exceptions=True)


async def _close(writer: asyncio.StreamWriter) -> None:
    """Closes the connection after all data is sent; after a timeout the caller aborts it."""
    writer.close()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), _CLOSE_SECONDS)


def _abort(writer: asyncio.StreamWriter) -> None:
    # Python 3.11.2 raises the error for a TLS connection that was closed twice; 3.11.7 does not.
    with contextlib.suppress(AttributeError):
        writer.transport.abort()


async def _copy(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, client: socket.socket | None = None
) -> None:
    """Copies until the end of `source`, and acknowledges what `client` sends at once.

    urllib3 uses Nagle's algorithm with a proxy: it holds the body of a request back until the head has been
    acknowledged, which Linux delays by 40 ms. An upload of 500 bytes took 48 ms, and takes 8 ms.
    """
    while data := await source.read(_CHUNK_BYTES):
        if client is not None and hasattr(socket, "TCP_QUICKACK"):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        target.write(data)
        await target.drain()


def _host(target: str) -> str:
    return target.split("://", 1)[-1].split("/", 1)[0].rsplit(":", 1)[0]


def _refusal(host: str) -> bytes:
    served = ", ".join((*sorted(SERVED_HOSTS), *(f"*{suffix}" for suffix in SERVED_SUFFIXES)))
    body = (
        f"The sandbox's proxy refuses {host!r}, so that nothing leaves this machine. Over TLS it stands in for "
        f"{served}.\n"
    ).encode()
    head = (
        "HTTP/1.1 403 Forbidden by the llmbeam sandbox\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
