"""Requests to the batch-inference API of a provider: what is retried, and the error of each failure."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import requests
from google.auth.exceptions import GoogleAuthError

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.providers.batch_job import BatchJob
from airflow_provider_llmbeam.providers.batch_reported import error_text, read_job
from airflow_provider_llmbeam.providers.errors import (
    BatchConflictError,
    BatchDeniedError,
    BatchError,
    BatchNotFoundError,
    BatchQuotaError,
    BatchRefusedError,
    BatchUnavailableError,
    UncertainSubmitError,
)
from airflow_provider_llmbeam.transport.redirects import redirect_behind
from airflow_provider_llmbeam.transport.server_reply import (
    PASSING_STATUSES,
    advised_wait_seconds,
    parse_json,
    read_error,
)
from airflow_provider_llmbeam.transport.token_errors import is_transient_token_error

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
_CHUNK_BYTES = 2**18
#: Maximum number of pages of a list: a server may name a next page forever.
_PAGES = 1_000


class BatchHttp:
    """Requests to the API of a provider.

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
        return self._retried(lambda: self.json_object(self._sent("GET", url, params=params)))

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
        raise BatchRefusedError(
            f"{self._provider} lists more than {_PAGES} pages of batch-inference jobs or files."
        )

    def send(self, method: str, url: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the reply to a request that may be sent twice."""
        return self._retried(lambda: self.json_object(self._sent(method, url, json=body)))

    def cancel(self, url: str) -> None:
        """Sends a POST request without content; a 409 says that what it names has ended."""
        self._retried(
            lambda: self.json_object(self._sent("POST", url, json={})),
            lambda error: not isinstance(error, BatchConflictError),
        )

    def delete(self, url: str) -> None:
        """Deletes something; does nothing if it does not exist."""
        with contextlib.suppress(BatchNotFoundError):
            self._retried(lambda: self._sent("DELETE", url).close())

    def create(
        self,
        url: str,
        body: Mapping[str, Any],
        display_name: str,
        parse: Callable[[Mapping[str, Any]], BatchJob | None],
    ) -> BatchJob:
        """Creates a job, and sends the request again only if it was certainly not processed.

        Raises:
            JobSpecError: The provider refuses the job.
            BatchQuotaError: Another job has to end first.
            UncertainSubmitError: The job may have been created.
        """

        def send() -> BatchJob:
            job = read_job(self.json_object(self._sent("POST", url, json=body)), parse)
            return replace(job, display_name=display_name)

        try:
            with _before_the_job():
                return self._retried(send, _was_refused_for_now)
        except BatchUnavailableError as error:
            if not error.was_processed:
                raise
            raise UncertainSubmitError(
                f"{error} Batch-inference job {display_name!r} may have been created, and then it runs and bills. "
                "Look it up by its display name before it is submitted again."
            ) from error

    def upload(self, send: Callable[[], T]) -> T:
        """Calls a function that uploads a file with `send_file`, again after a transient failure.

        Raises:
            JobSpecError: The provider refuses the file.
            BatchQuotaError: It stores no more files.
        """
        with _before_the_job():
            return self._retried(send)

    def send_file(self, url: str, headers: Mapping[str, str], **content: Any) -> requests.Response:
        """Sends a request of an upload once."""
        return self._sent("POST", url, headers=dict(headers), timeout=_UPLOAD_TIMEOUT, **content)

    def download(self, url: str, params: Mapping[str, str] | None = None) -> Iterator[bytes]:
        """Yields a file in chunks. After a broken connection it is read again, and what was yielded is skipped."""
        done, broken = 0, 0
        while True:
            response = self._retried(lambda: self._sent("GET", url, params=params))
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
            BatchUnavailableError: It breaks off, or is no JSON object. A proxy may have sent it.
        """
        try:
            body = _body(response, _REPLY_BYTES)
        except requests.RequestException as error:
            raise self._failure(error) from error
        found = parse_json(body or b"{}") if len(body) <= _REPLY_BYTES else None
        if not isinstance(found, Mapping):
            shown = error_text(body[:200].decode("utf-8", "replace"))
            raise BatchUnavailableError(
                f"{self._provider} answered HTTP {response.status_code} with {len(body)} bytes that are no JSON "
                f"object, or too many: {shown!r}."
            )
        return found

    def _retried(
        self, send: Callable[[], T], may_repeat: Callable[[BatchUnavailableError], bool] = lambda error: True
    ) -> T:
        left, wait = _RETRY_SECONDS, _FIRST_WAIT_SECONDS
        while True:
            started = time.monotonic()
            try:
                return send()
            except BatchUnavailableError as error:
                wait = max(wait, error.retry_after_seconds or 0.0)
                left -= time.monotonic() - started + wait
                if left < 0 or not may_repeat(error):
                    raise
            self._sleep(wait)
            wait *= 2

    def _sent(self, method: str, url: str, **options: Any) -> requests.Response:
        """Sends a request once, and returns a successful response whose body has not been read."""
        try:
            response = self._session.request(method, url, stream=True, **{"timeout": _TIMEOUT, **options})
            if response.ok:
                return response
            text = _body(response, _ERROR_BYTES).decode("utf-8", "replace")
        except (requests.RequestException, GoogleAuthError) as error:
            raise self._failure(error) from error
        raise refusal(self._provider, response.status_code, text, response.headers, time.time())

    def _failure(self, error: requests.RequestException | GoogleAuthError) -> BatchError:
        """Returns the error of a request without a response, or with one that broke off."""
        if (redirect := redirect_behind(error)) is not None:
            return BatchRefusedError(f"{self._provider}: {redirect}. Check the proxy and `model.base_url`.")
        shown = f"{type(error).__name__}: {error_text(str(error.args[0] if error.args else ''))}"
        if isinstance(error, GoogleAuthError):
            if is_transient_token_error(error):
                return BatchUnavailableError(f"{self._provider}: no access token. {shown}.", was_processed=False)
            return BatchDeniedError(f"{self._provider}: the Google credentials give no access token. {shown}.")
        if isinstance(error, ValueError):  # an invalid address
            return BatchRefusedError(f"{self._provider}: {shown}.")
        return BatchUnavailableError(
            f"{self._provider} did not answer. {shown}.", was_processed=not _is_unconnected(error)
        )


def refusal(provider: str, status: int, text: str, headers: Mapping[str, str], now: float) -> BatchError:
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
        return (BatchConflictError if status == 409 else BatchUnavailableError)(
            message,
            http_status=status,
            retry_after_seconds=advised_wait_seconds(headers, body.details, now),
            was_processed=status != 429,
        )
    if status in (401, 403):
        return BatchDeniedError(message, http_status=status)
    return BatchNotFoundError(message) if status == 404 else BatchRefusedError(message)


@contextlib.contextmanager
def _before_the_job() -> Iterator[None]:
    """Turns refusals into errors that say that there is no job."""
    try:
        yield
    except (BatchDeniedError, BatchNotFoundError, BatchRefusedError) as error:
        raise JobSpecError(f"{error} No job was created.") from error
    except BatchUnavailableError as error:
        if error.http_status != 429:
            raise
        raise BatchQuotaError(f"{error} No job was created. Submit it when another job has ended.") from error


def _body(response: requests.Response, max_bytes: int) -> bytes:
    """Returns the body; of a longer one its beginning, with more than `max_bytes`."""
    body = bytearray()
    with response:
        for chunk in response.iter_content(_CHUNK_BYTES):
            body += chunk
            if len(body) > max_bytes:
                break
    return bytes(body)


def _was_refused_for_now(error: BatchUnavailableError) -> bool:
    """Whether the same submission may succeed soon; a 429 without advice is one of jobs or enqueued tokens."""
    return not error.was_processed and (error.http_status is None or error.retry_after_seconds is not None)


def _is_unconnected(error: requests.RequestException) -> bool:
    """Whether no connection was made, so that nothing was sent."""
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    # A `ProxyError` may also be a connection that broke after the request (urllib3 2.8).
    reason = getattr(reason, "original_error", reason)
    # By its name, as the workers' package does not require urllib3, which `requests` brings.
    return isinstance(error, requests.ConnectTimeout) or type(reason).__name__ == "NewConnectionError"
