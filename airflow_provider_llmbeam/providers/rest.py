"""The synchronous HTTP client of the providers' APIs: what is retried, and the error of each failure."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, TypeVar

import requests
from google.auth.exceptions import GoogleAuthError

from airflow_provider_llmbeam.providers.access import open_access, tls_context
from airflow_provider_llmbeam.providers.errors import (
    ApiConflictError,
    ApiDeniedError,
    ApiError,
    ApiNotFoundError,
    ApiRefusedError,
    ApiUnavailableError,
)
from airflow_provider_llmbeam.spec.model import Model, ModelApi, OpenAIModel
from airflow_provider_llmbeam.transport.google_auth import is_transient_token_error
from airflow_provider_llmbeam.transport.redirects import redirect_behind, without_redirects
from airflow_provider_llmbeam.transport.server_reply import (
    PASSING_STATUSES,
    advised_wait_seconds,
    error_text,
    parse_json,
    read_error,
    str_of,
)

T = TypeVar("T")

#: Time to connect, and the longest silence of the server, in seconds.
_TIMEOUT = (10.0, 60.0)
#: The same for an upload, whose file the server stores before it answers.
_UPLOAD_TIMEOUT = (10.0, 300.0)
#: Time in which a failed request is sent again, in seconds, and the first wait: who polls asks again soon anyway.
_RETRY_SECONDS = 15.0
_FIRST_WAIT_SECONDS = 0.5
#: Connections that may break while a file is downloaded.
_BROKEN_DOWNLOADS = 3
#: Maximum size of a reply: a page of jobs, of which those of others may contain their answers.
_REPLY_BYTES = 64 * 2**20
#: Maximum size of an error that is read.
_ERROR_BYTES = 64 * 2**10
#: Maximum size of a reply to one small request to a model; a vector of 3,072 numbers is 60 kB.
_ANSWER_BYTES = 2_000_000
_CHUNK_BYTES = 2**18
#: Maximum number of pages of a list: a server may name a next page forever.
_PAGES = 1_000


def open_client(model: Model, session: requests.Session | None = None) -> RestClient:
    """Opens a client of the API that has a model.

    Args:
        model: The model.
        session: Session that sends the credentials and refuses redirects. By default one with the credentials of
            this process.

    Raises:
        JobSpecError: There are no credentials.
    """
    session = session or session_with(open_access(model).headers, model.api)
    if isinstance(model, OpenAIModel):
        session.params = dict(model.query)
    return RestClient(session, model.api.service)


def session_with(headers: Callable[[], Mapping[str, str]], api: ModelApi | None = None) -> requests.Session:
    """Returns a session that sends the headers that a function returns for each request, and refuses redirects.

    Args:
        headers: The function.
        api: The API, with its fixed headers, and with a client's certificate and its key for mutual TLS.

    Raises:
        JobSpecError: A file cannot be used.
    """
    session = without_redirects(requests.Session())
    if api is not None:
        session.headers.update(api.fixed_headers)
    if api is not None and api.certificate is not None:
        tls_context(api.certificate)  # of a missing file, `requests` raises an `OSError` with the first request
        session.cert = api.certificate

    def authorize(request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers.update(headers())
        return request

    session.auth = authorize  # without it, `requests` takes the credentials of ~/.netrc
    return session


class RestClient:
    """Requests to the API of a provider beside its models: batch inference, files, cached contents.

    Args:
        session: Session that sends the credentials and refuses redirects.
        provider: Name of the provider, for error messages.
        sleep: Waits before a request is sent again.
    """

    def __init__(
        self, session: requests.Session, provider: str, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._session = session
        self._provider = provider
        self._sleep = sleep

    def get(self, url: str, params: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        """Returns the reply to a GET request."""
        return self.retry(lambda: self.json_object(self.request("GET", url, params=params)))

    def pages(
        self, url: str, params: Mapping[str, str], next_page: Callable[[Mapping[str, Any]], Mapping[str, str]]
    ) -> Iterator[Mapping[str, Any]]:
        """Yields the pages of a list.

        Args:
            url: Address of the list.
            params: Parameters of the first page.
            next_page: Returns the parameters that a page names for the next one; none at the end.
        """
        query = dict(params)
        for _ in range(_PAGES):
            page = self.get(url, query)
            yield page
            if not (further := next_page(page)):
                return
            query |= further
        raise ApiRefusedError(f"{self._provider} lists more than {_PAGES} pages.")

    def send(self, method: str, url: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the reply to a request that may be sent twice."""
        return self.retry(lambda: self.json_object(self.request(method, url, json=body)))

    def cancel(self, url: str) -> None:
        """Sends a POST request without content; a 409 says that what it names has ended."""
        self.retry(
            lambda: self.json_object(self.request("POST", url, json={})),
            lambda error: not isinstance(error, ApiConflictError),
        )

    def delete(self, url: str) -> None:
        """Deletes something; does nothing if it does not exist."""
        with contextlib.suppress(ApiNotFoundError):
            self.retry(lambda: self.request("DELETE", url).close())

    def send_file(self, url: str, headers: Mapping[str, str], **content: Any) -> requests.Response:
        """Sends a request of an upload once."""
        return self.request("POST", url, headers=dict(headers), timeout=_UPLOAD_TIMEOUT, **content)

    def download(self, url: str, params: Mapping[str, str] | None = None) -> Iterator[bytes]:
        """Yields a file in chunks. After a broken connection it is read again, and what was yielded is skipped."""
        done, broken = 0, 0
        while True:
            response = self.retry(lambda: self.request("GET", url, params=params))
            position = 0
            try:
                with response:
                    for chunk in response.iter_content(_CHUNK_BYTES):
                        new = chunk[max(0, done - position) :]
                        position += len(chunk)
                        done += len(new)
                        if new:
                            yield new
                return
            except requests.RequestException as error:
                broken += 1
                if broken > _BROKEN_DOWNLOADS:
                    raise self._failure(error) from error

    def json_object(self, response: requests.Response) -> Mapping[str, Any]:
        """Returns the body of a response; an empty one is an empty object.

        Raises:
            ApiUnavailableError: It breaks off, or is no JSON object. A proxy may have sent it.
        """
        try:
            body = _body(response, _REPLY_BYTES)
        except requests.RequestException as error:
            raise self._failure(error) from error
        found = parse_json(body or b"{}") if len(body) <= _REPLY_BYTES else None
        if not isinstance(found, Mapping):
            shown = error_text(body[:200].decode("utf-8", "replace"))
            raise ApiUnavailableError(
                f"{self._provider} answered HTTP {response.status_code} with {len(body)} bytes that are no JSON "
                f"object, or too many: {shown!r}."
            )
        return found

    def exchange(
        self, url: str, body: Mapping[str, Any], reply_seconds: float
    ) -> tuple[int, Mapping[str, str], str]:
        """Sends a POST request once; returns the status, the headers and the body of whatever the reply is.

        Args:
            url: Address.
            body: Body, before it is encoded as JSON.
            reply_seconds: Time until the end of the reply, in seconds.

        Raises:
            RequestException: There was no whole reply; of an error, a part of it is enough.
            HTTPError: The same, of urllib3.
        """
        deadline = time.monotonic() + reply_seconds
        timeout = (min(_TIMEOUT[0], reply_seconds), reply_seconds)
        with self._session.post(url, json=body, timeout=timeout, stream=True) as reply:
            content = bytearray()
            # The timeout applies to each read, and a server may send one byte at a time.
            while piece := reply.raw.read1(_CHUNK_BYTES, decode_content=True):
                content += piece
                if time.monotonic() > deadline:
                    raise requests.Timeout(f"no whole reply within {reply_seconds:g} s; {len(content)} bytes came")
                if reply.status_code != 200 and len(content) > _ERROR_BYTES:
                    break
                if len(content) > _ANSWER_BYTES:
                    raise requests.RequestException(f"a reply of more than {_ANSWER_BYTES:,} bytes")
            return reply.status_code, reply.headers, content.decode("utf-8", "replace")

    def retry(
        self, send: Callable[[], T], may_repeat: Callable[[ApiUnavailableError], bool] = lambda error: True
    ) -> T:
        """Calls a function that sends a request, again after a transient failure.

        Args:
            send: The function.
            may_repeat: Whether the request may be sent again after an error.
        """
        left, wait = _RETRY_SECONDS, _FIRST_WAIT_SECONDS
        while True:
            started = time.monotonic()
            try:
                return send()
            except ApiUnavailableError as error:
                wait = max(wait, error.retry_after_seconds or 0.0)
                left -= time.monotonic() - started + wait
                if left < 0 or not may_repeat(error):
                    raise
            self._sleep(wait)
            wait *= 2

    def request(self, method: str, url: str, **options: Any) -> requests.Response:
        """Sends a request once, and returns a successful response whose body has not been read."""
        try:
            response = self._session.request(method, url, stream=True, **{"timeout": _TIMEOUT, **options})
            if response.ok:
                return response
            text = _body(response, _ERROR_BYTES).decode("utf-8", "replace")
        except (requests.RequestException, GoogleAuthError) as error:
            raise self._failure(error) from error
        raise refusal(self._provider, response.status_code, text, response.headers, time.time())

    def _failure(self, error: requests.RequestException | GoogleAuthError) -> ApiError:
        """Returns the error of a request without a response, or with one that broke off."""
        if (redirect := redirect_behind(error)) is not None:
            return ApiRefusedError(f"{self._provider}: {redirect}. Check the proxy and `model.base_url`.")
        shown = f"{type(error).__name__}: {error_text(str(error.args[0] if error.args else ''))}"
        if isinstance(error, GoogleAuthError):
            if is_transient_token_error(error):
                return ApiUnavailableError(f"{self._provider}: no access token. {shown}.", was_processed=False)
            return ApiDeniedError(f"{self._provider}: the credentials give no access token. {shown}.")
        if isinstance(error, ValueError):  # an invalid address
            return ApiRefusedError(f"{self._provider}: {shown}.")
        return ApiUnavailableError(
            f"{self._provider} did not answer. {shown}.", was_processed=not _is_unconnected(error)
        )


def refusal(provider: str, status: int, text: str, headers: Mapping[str, str], now: float) -> ApiError:
    """Returns the error of a response.

    Args:
        provider: Name of the provider.
        status: HTTP status.
        text: The body.
        headers: Headers.
        now: Unix time.
    """
    body = read_error(text)
    message = f"{provider} answered HTTP {status}: {error_text(body.message) or 'no message'}"
    message = message if message.endswith((".", "!", "?")) else f"{message}."
    # `insufficient_quota` of OpenAI is an account without money, for which waiting is of no use.
    has_no_money = status == 429 and body.code == "insufficient_quota"
    if (status in PASSING_STATUSES and not has_no_money) or status >= 500:
        return (ApiConflictError if status == 409 else ApiUnavailableError)(
            message,
            http_status=status,
            retry_after_seconds=advised_wait_seconds(headers, body.details, now),
            was_processed=status != 429,
        )
    if status in (401, 403):
        return ApiDeniedError(message, http_status=status)
    return ApiNotFoundError(message) if status == 404 else ApiRefusedError(message)


def _body(response: requests.Response, max_bytes: int) -> bytes:
    """Returns the body; of a longer one its beginning, with more than `max_bytes`."""
    body = bytearray()
    with response:
        for chunk in response.iter_content(_CHUNK_BYTES):
            body += chunk
            if len(body) > max_bytes:
                break
    return bytes(body)


def _is_unconnected(error: requests.RequestException) -> bool:
    """Whether no connection was made, so that nothing was sent."""
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    # A `ProxyError` may also be a connection that broke after the request (urllib3 2.8).
    reason = getattr(reason, "original_error", reason)
    # By its name, as the workers' package does not require urllib3, which `requests` brings.
    return isinstance(error, requests.ConnectTimeout) or type(reason).__name__ == "NewConnectionError"


class FileBody:
    """A file of a known size, between two parts of a multipart body.

    `requests` takes the size from `__len__`, and `http.client` reads piece by piece. Without a size the body would
    be sent in chunks, which the uploads of the providers do not support.

    Args:
        file: The file, at its beginning.
        size: Size of the file, in bytes.
        head: Sent before the file.
        tail: Sent after it.
    """

    def __init__(self, file: IO[bytes], size: int, head: bytes = b"", tail: bytes = b"") -> None:
        self._file = file
        self._size = size
        self._left = size
        self._head = head
        self._tail = tail
        self._length = len(head) + size + len(tail)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[bytes]:
        # `requests` recognises a stream by this method; it is `read` that is called.
        return iter(self.read, b"")

    def read(self, max_bytes: int = 2**16) -> bytes:
        """Returns the next piece; an empty one at the end.

        Raises:
            ApiRefusedError: The file has another size.
        """
        if self._head:
            piece, self._head = self._head, b""
        elif self._left:
            piece = self._file.read(min(max_bytes, self._left))
            self._left -= len(piece)
            if not piece or (not self._left and self._file.read(1)):
                raise ApiRefusedError(
                    f"The file has {'fewer' if self._left else 'more'} than {self._size} bytes, its size before "
                    "the upload."
                )
        else:
            piece, self._tail = self._tail, b""
        return piece


def google_next_page(page: Mapping[str, Any]) -> Mapping[str, str]:
    """Returns the parameter that a page of one of Google's lists names for the next page; none at the end."""
    token = str_of(page.get("nextPageToken"))
    return {"pageToken": token} if token else {}
