from __future__ import annotations

from itertools import islice

import pytest
from google.longrunning.operations_pb2 import ListOperationsResponse
from google.oauth2.credentials import Credentials

from airflow_provider_llmbeam.exceptions import CloudUnavailableError
from airflow_provider_llmbeam.hooks.google.errors import CloudRequest
from airflow_provider_llmbeam.hooks.google.rest import GoogleRest
from airflow_provider_llmbeam.hooks.vertex_ai import VertexAIHook
from tests.replying import Replying, raw

REQUEST = CloudRequest(action="show the quotas", project="p", service="cloudquotas", role="r")


class Hook:
    gcp_conn_id = "google_cloud_default"

    def get_credentials(self):
        return Credentials(token="t")


def token_of(received):
    return received.path.partition("pageToken=")[2]


def test_a_list_whose_pages_name_an_earlier_one_as_the_next_ends_with_an_error():
    following = {"": "b", "b": "c", "c": "b"}
    with Replying(lambda one: raw({"nextPageToken": following[token_of(one)]})) as service:
        pages = GoogleRest(Hook()).pages(service.url, {}, REQUEST)
        with pytest.raises(CloudUnavailableError, match=r"quotas: page 3 of the list names .* 'b', so the"):
            list(islice(pages, 10))
    assert [token_of(one) for one in service.received] == ["", "b", "c"]


def test_the_pages_of_a_list_are_read_to_its_end():
    following = {"": "b", "b": "c", "c": ""}
    with Replying(lambda one: raw({"nextPageToken": following[token_of(one)]})) as service:
        assert len(list(GoogleRest(Hook()).pages(service.url, {}, REQUEST))) == 3


def test_operations_whose_pages_repeat_end_with_an_error(monkeypatch):
    """A teardown would list them without end, while the GPU bills."""

    class Client:
        def list_operations(self, request, **options):
            return ListOperationsResponse(operations=[{"name": "o"}], next_page_token="again")

    hook = VertexAIHook.__new__(VertexAIHook)
    hook.gcp_conn_id = "google_cloud_default"
    monkeypatch.setattr(VertexAIHook, "project", "p")
    monkeypatch.setattr(hook, "_client", lambda name: Client())
    with pytest.raises(CloudUnavailableError, match="list the operations of 'e': page 2 of the list names"):
        list(islice(hook.list_running_operations("e"), 10))
