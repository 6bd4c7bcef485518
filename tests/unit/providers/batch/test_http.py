"""What is sent again, and the error of each failure."""

from __future__ import annotations

import io
import socket
from typing import Any

import pytest
import requests

from airflow_provider_llmbeam.exceptions import JobFailedError, JobRefusedError
from airflow_provider_llmbeam.providers.batch import BatchJob
from airflow_provider_llmbeam.providers.errors import (
    ApiDeniedError,
    ApiError,
    ApiNotFoundError,
    ApiRefusedError,
    ApiUnavailableError,
    BatchQuotaError,
    UncertainSubmitError,
)
from airflow_provider_llmbeam.providers.openai.batch import OpenAIBatches
from airflow_provider_llmbeam.providers.rest import FileBody, RestClient, refusal
from airflow_provider_llmbeam.spec import OpenAIModel
from airflow_provider_llmbeam.transport.redirects import without_redirects
from tests.replying import Replying, raw

JOB = {"id": "batch_1", "status": "validating", "metadata": {"display_name": "night-1"}}


class Server(Replying):
    """Sends its replies in order; the last one repeats."""

    def __init__(self, *replies: bytes) -> None:
        self.replies = list(replies)
        super().__init__(lambda request: self.replies.pop(0) if len(self.replies) > 1 else self.replies[0])
        self.waits: list[float] = []
        session = without_redirects(requests.Session())
        session.trust_env = False
        self.http = RestClient(session, "OpenAI", self.waits.append)

    def create(self) -> BatchJob:
        provider = batches(self.url, self.http)
        return provider._create("night-1", provider._post(f"{self.url}/batches", {"a": 1}))


def batches(url: str, http: RestClient) -> OpenAIBatches:
    return OpenAIBatches(OpenAIModel(type="openai", name="gpt-5-mini", base_url=url), http)


def error(status: int, message: str = "No.", **headers: str) -> bytes:
    return raw({"error": {"message": message}}, status, **headers)


@pytest.mark.parametrize("failure", [*map(error, (408, 409, 425, 429, 499, 500)), raw("<html>"), b""])
def test_a_failed_read_is_sent_again(failure) -> None:
    with Server(failure, failure, raw({"a": 1})) as server:
        assert server.http.get(server.url) == {"a": 1}
        assert server.waits == [0.5, 1.0]


def test_the_time_of_retries_is_bounded() -> None:
    with Server(error(503, "Try later")) as server, pytest.raises(ApiUnavailableError, match="503: Try later"):
        server.http.get(server.url)
    assert 0 < sum(server.waits) <= 15


def test_an_advised_wait_is_kept_and_a_longer_one_than_the_time_of_retries_is_left_to_the_caller() -> None:
    with Server(error(429, Retry_After="3"), raw({})) as server:
        server.http.get(server.url)
        assert server.waits == [3.0]
    with Server(error(429, Retry_After="60")) as server:
        with pytest.raises(ApiUnavailableError) as caught:
            server.http.get(server.url)
        assert (caught.value.retry_after_seconds, server.waits) == (60.0, [])


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, ApiRefusedError), (401, ApiDeniedError), (403, ApiDeniedError), (404, ApiNotFoundError)],
)
def test_a_refusal_is_not_sent_again(status, kind) -> None:
    with Server(error(status, "Because.")) as server:
        with pytest.raises(kind, match=rf"^OpenAI answered HTTP {status}: Because\.$") as caught:
            server.http.get(server.url)
        assert len(server.received) == 1
    assert isinstance(caught.value, JobFailedError)


@pytest.mark.parametrize(
    "failure", [*map(error, (408, 409, 425, 499, 500)), b"", raw("<html>"), raw({"id": "../x"})]
)
def test_a_submission_that_may_have_been_processed_is_sent_once(failure) -> None:
    with Server(failure) as server:
        with pytest.raises(UncertainSubmitError, match=r"'night-1' may have been created, and then it runs"):
            server.create()
        assert len(server.received) == 1


def test_a_submission_is_sent_again_if_no_connection_was_made() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    waits: list[float] = []
    session = requests.Session()
    session.trust_env = False
    http = RestClient(session, "OpenAI", waits.append)
    provider = batches(url, http)
    with pytest.raises(ApiUnavailableError, match="did not answer"):
        provider._create("night-1", provider._post(url, {}))
    assert len(waits) == 4


def test_a_submission_is_sent_again_after_an_advised_wait_only() -> None:
    with Server(error(429, Retry_After="2"), raw(JOB)) as server:
        assert server.create().name == "batch_1"
        assert server.waits == [2.0]
    with Server(error(429)) as server:
        with pytest.raises(BatchQuotaError, match="No job was created"):
            server.create()
        assert len(server.received) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413])
def test_a_refused_submission_is_final(status) -> None:
    with Server(error(status, "Because")) as server:
        with pytest.raises(JobRefusedError, match=rf"HTTP {status}: Because\. No job was created\.$"):
            server.create()
        assert len(server.received) == 1


def test_an_account_without_money_is_not_waited_for() -> None:
    reply = raw({"error": {"message": "Pay first.", "code": "insufficient_quota"}}, 429)
    with Server(reply) as server, pytest.raises(JobRefusedError, match="Pay first"):
        server.create()


def test_a_redirect_is_refused_with_the_credentials_unsent() -> None:
    with Server(raw("", 307, Location="http://127.0.0.1:1/")) as server:
        with pytest.raises(ApiRefusedError, match="credentials and data are not sent on"):
            server.http.get(server.url)
        with pytest.raises(JobRefusedError, match="not sent on"):
            server.create()
        assert len(server.received) == 2


def test_an_invalid_address_is_refused() -> None:
    with pytest.raises(ApiRefusedError, match="OpenAI: "):
        RestClient(requests.Session(), "OpenAI").get("nowhere")


def test_a_download_that_breaks_off_goes_on_where_it_was() -> None:
    content = bytes(range(256)) * 4096
    whole = raw(content)
    with Server(whole[:-100_000], error(503), whole[:-10], whole) as server:
        assert b"".join(server.http.download(server.url)) == content
        assert len(server.received) == 4


def test_a_download_that_always_breaks_off_ends() -> None:
    with Server(raw(b"x" * 100)[:-1]) as server:
        with pytest.raises(ApiUnavailableError):
            list(server.http.download(server.url))
        assert len(server.received) == 4


def test_a_list_without_an_end_ends() -> None:
    with Server(raw({"next": "1"})) as server, pytest.raises(ApiRefusedError, match="more than 1000 pages"):
        for _ in server.http.pages(server.url, {"a": "b"}, lambda page: {"page": "1"}):
            pass
    assert {request.path for request in server.received} == {"/?a=b", "/?a=b&page=1"}


def test_a_large_reply_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_llmbeam.providers.rest._REPLY_BYTES", 1000)
    with Server(raw({"a": "x" * 1000})) as server, pytest.raises(ApiUnavailableError, match="too many"):
        server.http.get(server.url)


def test_a_key_in_a_message_is_not_shown() -> None:
    found = refusal("OpenAI", 401, '{"error": {"message": "Bad key sk-abcdefghijklmnopqrstu"}}', {}, 0.0)
    assert "abcdefgh" not in str(found)


@pytest.mark.parametrize("text", ["", "[]", "null", "x" * 10_000, '{"error": 5}'])
def test_any_error_has_a_short_message(text) -> None:
    found = refusal("OpenAI", 400, text, {}, 0.0)
    assert isinstance(found, ApiError)
    assert 20 < len(str(found)) < 700


def test_a_file_is_sent_with_its_size_and_in_pieces() -> None:
    content = b"0123456789" * 100_000
    reads: list[int] = []

    class File(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            reads.append(size or 0)
            return super().read(size)

    with Server(raw({})) as server:
        server.http.send_file(
            server.url, {}, data=FileBody(File(content), len(content), b"head-", b"-tail")
        ).close()
        (request,) = server.received
    assert request.body == b"head-" + content + b"-tail"
    assert request.headers["Content-Length"] == str(len(content) + 10)
    assert max(reads) < 100_000


@pytest.mark.parametrize(("size", "fault"), [(9, "more than 9 bytes"), (11, "fewer than 11 bytes")])
def test_a_file_of_another_size_is_not_sent(size, fault) -> None:
    def send() -> Any:
        return server.http.send_file(server.url, {}, data=FileBody(io.BytesIO(b"0123456789"), size))

    with Server(raw({})) as server, pytest.raises(JobRefusedError, match=rf"{fault}.*No job was created"):
        batches(server.url, server.http)._retry_upload(send)
