"""Batch inference of servers with OpenAI's files and batches, which differ in what they keep."""

from __future__ import annotations

import pytest
from llmbeam_sandbox import Fault

from airflow_provider_llmbeam.exceptions import JobRefusedError, JobSpecError
from airflow_provider_llmbeam.providers.batch import open_provider
from airflow_provider_llmbeam.providers.errors import ApiDeniedError, ApiUnavailableError, UncertainSubmitError
from airflow_provider_llmbeam.spec import OpenAIModel
from tests.replying import Replying, raw

LACKS_CANCEL = (
    "It cancels no batch, so that one that is not finished in time goes on while its rows are sent online.",
)


@pytest.fixture
def cloud(open_cloud):
    """A server on this machine, which is not OpenAI's."""
    return open_cloud("openai")


def test_a_server_is_asked_for_its_batches_and_files_before_anything_is_sent(cloud) -> None:
    assert cloud.provider.probe() == ()
    methods = [request.method for request in cloud.sandbox.requests]
    assert methods == ["openai.batches.list", "openai.files.list", "openai.batches.cancel"]
    cloud.sandbox.batches.change(without=["cancel"])
    assert cloud.provider.probe() == LACKS_CANCEL


def test_openai_itself_is_not_asked(cloud) -> None:
    model = OpenAIModel(type="openai", name="gpt-5-mini")
    assert open_provider(model, output_uri="").probe() == ()
    assert list(cloud.sandbox.requests) == []


@pytest.mark.parametrize("lack", ["batches", "files"])
def test_a_server_without_batches_is_refused(cloud, lack) -> None:
    cloud.sandbox.batches.change(without=[lack])
    url = cloud.sandbox.openai_url
    with pytest.raises(JobSpecError) as caught:
        cloud.provider.probe()
    assert str(caught.value).startswith(
        f"`inference.mode`: must be 'online' with the server at {url}: batch inference needs a list at "
        f"{url}/{lack}. The server answered HTTP 404: "
    )
    assert str(caught.value).endswith("Nothing was sent or billed.")


@pytest.mark.parametrize(
    ("status", "kind"),
    [(405, JobSpecError), (501, JobSpecError), (401, ApiDeniedError), (503, ApiUnavailableError)],
)
def test_a_refusal_that_is_none_of_batches_is_told_apart(cloud, monkeypatch, status, kind) -> None:
    monkeypatch.setattr("airflow_provider_llmbeam.providers.rest._RETRY_SECONDS", 0.0)
    with Replying(lambda _: raw({}, status)) as server:
        model = OpenAIModel(type="openai", name="m", base_url=f"{server.url}/v1")
        with pytest.raises(kind, match=f"The server answered HTTP {status}"):
            open_provider(model, output_uri="").probe()


def test_the_query_of_a_gateway_is_in_each_address(cloud) -> None:
    model = OpenAIModel(type="openai", name="m", base_url=cloud.sandbox.openai_url, query={"api-version": "1"})
    with Replying(lambda _: raw({"object": "list", "data": []})) as server:
        provider = open_provider(model.model_copy(update={"base_url": f"{server.url}/v1"}), output_uri="")
        assert provider.find("night-") == []
        (request,) = server.received
    assert request.path == "/v1/batches?api-version=1&limit=100"


@pytest.mark.parametrize("without", [[], ["metadata"], ["filename"]])
def test_a_batch_is_found_by_its_metadata_or_by_the_name_of_its_file(cloud, without) -> None:
    cloud.sandbox.batches.change(without=without)
    for name in ("night-1", "day-1"):
        cloud.submit(name)
    (found,) = cloud.provider.find("night-")
    assert found.display_name == "night-1"
    assert cloud.provider.get(found.name).display_name == "night-1"


def test_a_batch_without_metadata_whose_file_is_deleted_has_no_name(cloud) -> None:
    cloud.sandbox.batches.change(without=["metadata"])
    job = cloud.submit()
    provider = open_provider(
        OpenAIModel(type="openai", name="m", base_url=cloud.sandbox.openai_url), output_uri=""
    )
    for file in provider.uploads("night-"):
        provider.delete_upload(file.name)
    assert (provider.find("night-"), provider.get(job.name).display_name) == ([], "")


def test_a_creation_without_a_reply_is_found_where_metadata_is_dropped(cloud) -> None:
    cloud.sandbox.batches.change(without=["metadata"])
    cloud.sandbox.faults.queue("openai.batches.create", Fault(kind="disconnect"))
    with pytest.raises(UncertainSubmitError):
        cloud.submit()
    (found,) = cloud.provider.find("night-1")
    assert found.display_name == "night-1"


def test_a_server_that_keeps_neither_is_refused_and_its_batch_is_cancelled(cloud) -> None:
    cloud.sandbox.batches.change(without=["metadata", "filename"], outcome="stuck")
    with pytest.raises(
        JobRefusedError, match=r"returns neither the metadata .* It was cancelled\. Set `inference"
    ):
        cloud.submit()
    assert list(cloud.provider.uploads("")) == [], "its prompts are not left there"
    cloud.sandbox.batches.change(without=["metadata", "filename", "cancel"])
    with pytest.raises(JobRefusedError, match=r"It may still run\."):
        cloud.submit()


def test_failed_rows_are_read_from_the_one_file_of_a_server_without_a_file_of_errors(cloud) -> None:
    cloud.sandbox.batches.change(without=["error_file"], fail_ratio=0.3)
    done = cloud.after(cloud.submit(rows=10))
    assert (done.answered, done.failed, len(done.results)) == (7, 3, 1)
    rows = cloud.rows(done)
    assert sorted(row["response"]["status_code"] for row in rows) == [200] * 7 + [500] * 3


def test_pages_go_on_behind_the_last_id_that_a_page_names(cloud) -> None:
    pages = iter(
        [
            {"data": [{"id": "batch_encoded1", "created_at": 9}], "last_id": "batch_1", "has_more": True},
            {"data": [{"id": "batch_encoded2", "created_at": 8}], "last_id": "batch_2", "has_more": False},
        ]
    )

    with Replying(lambda _: raw(next(pages))) as server:
        model = OpenAIModel(type="openai", name="m", base_url=f"{server.url}/v1")
        assert open_provider(model, output_uri="").find("night-") == []
        assert [request.path for request in server.received][-1] == "/v1/batches?limit=100&after=batch_1"
