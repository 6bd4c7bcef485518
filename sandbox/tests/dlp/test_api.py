from __future__ import annotations

import json

import pytest
from google.api_core.exceptions import BadRequest, Forbidden, TooManyRequests
from google.cloud import dlp_v2
from google.cloud.dlp_v2.types import (
    ContentItem,
    FieldId,
    InfoType,
    InspectConfig,
    InspectContentRequest,
    Likelihood,
    Table,
    Value,
)

PARENT = "projects/llmbeam-sandbox/locations/europe-west3"


@pytest.fixture
def client(google):
    with dlp_v2.DlpServiceClient(transport="rest") as opened:
        yield opened


def config(*names: str, **fields) -> InspectConfig:
    return InspectConfig(info_types=[InfoType(name=name) for name in names], **fields)


def inspect(client, item, parent=PARENT, **config_fields):
    request = InspectContentRequest(
        parent=parent, inspect_config=config("EMAIL_ADDRESS", **config_fields), item=item
    )
    return client.inspect_content(request, retry=None).result


def table(columns: list[str], *rows: list[str]) -> ContentItem:
    return ContentItem(
        table=Table(
            headers=[FieldId(name=name) for name in columns],
            rows=[Table.Row(values=[Value(string_value=text) for text in row]) for row in rows],
        )
    )


def test_a_finding_in_a_text_has_its_range_in_bytes_and_in_code_points(client) -> None:
    (found,) = inspect(client, ContentItem(value="🎉é a@b.de"), include_quote=True).findings
    assert (found.location.byte_range.start, found.location.byte_range.end) == (7, 13)
    assert (found.location.codepoint_range.start, found.location.codepoint_range.end) == (3, 9)
    assert (found.quote, found.likelihood) == ("a@b.de", Likelihood.LIKELY)


def test_a_finding_in_a_table_has_its_row_and_column_and_no_quote_unless_asked_for(client, sandbox) -> None:
    item = table(["id", "text"], ["1", "nothing"], ["2", "🎉 a@b.de"])
    (found,) = inspect(client, item).findings
    (place,) = found.location.content_locations
    assert place.record_location.field_id.name == "text"
    assert place.record_location.table_location.row_index == 1
    assert (found.location.codepoint_range.start, found.quote) == (2, "")
    (request,) = sandbox.dlp.inspected
    assert request.texts == (("id", "1"), ("text", "nothing"), ("id", "2"), ("text", "🎉 a@b.de"))
    assert (request.text_bytes, request.location) == (1 + 7 + 1 + 11, "europe-west3")


def test_less_likely_findings_are_left_out(client) -> None:
    assert not inspect(client, ContentItem(value="a@b.de"), min_likelihood=Likelihood.VERY_LIKELY).findings


def test_more_findings_than_are_returned_are_told(client, sandbox) -> None:
    sandbox.dlp.max_findings = 2
    result = inspect(client, ContentItem(value="a@b.de c@d.de e@f.de"))
    assert (len(result.findings), result.findings_truncated) == (2, True)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (ContentItem(value="x" * 524_288), "payload size exceeds the limit: 524288 bytes"),
        (table(["a"] * 2, ["x", "y"]), "unique"),
        (table(["a"], ["x", "y"]), "Row 0 has 2 values"),
        (ContentItem(), "value or a table"),
    ],
)
def test_a_request_beyond_a_limit_is_refused(client, item, message) -> None:
    with pytest.raises(BadRequest, match=message):
        inspect(client, item)


def test_unknown_types_and_locations_are_refused(client) -> None:
    with pytest.raises(BadRequest, match='Invalid built-in info type name "NOTHING"'):
        client.inspect_content(
            InspectContentRequest(parent=PARENT, inspect_config=config("NOTHING"), item=ContentItem(value="x")),
            retry=None,
        )
    with pytest.raises(BadRequest, match="Location 'Nowhere' is not supported"):
        inspect(client, ContentItem(value="x"), "projects/p/locations/Nowhere")


def test_requests_above_the_quota_of_a_location_are_refused_and_not_billed(client, sandbox) -> None:
    sandbox.dlp.set_quota(requests_per_minute=60)
    for _ in range(2):
        inspect(client, ContentItem(value="x"))
    with pytest.raises(TooManyRequests, match="Quota exceeded for quota metric"):
        inspect(client, ContentItem(value="x"))
    inspect(client, ContentItem(value="x"), "projects/another")
    assert len(sandbox.dlp.inspected) == 3
    sandbox.reset()
    assert sandbox.dlp.inspected == []


def test_a_project_whose_api_is_disabled_is_refused(client, sandbox) -> None:
    sandbox.dlp.disabled_projects.add("llmbeam-sandbox")
    with pytest.raises(Forbidden, match="it is disabled"):
        inspect(client, ContentItem(value="x"))


def test_tables_of_too_many_values_are_refused(http, sandbox) -> None:
    table = {"headers": [{"name": "a"}, {"name": "b"}], "rows": [{"values": [{}, {}]}] * 25_001}
    content = json.dumps({"item": {"table": table}}, separators=(",", ":"))
    token = {"Authorization": f"Bearer {sandbox.token}"}
    reply = http.post(f"/v2/{PARENT}/content:inspect", content=content, headers=token)
    error = reply.json()["error"]
    assert (reply.status_code, error["status"]) == (400, "INVALID_ARGUMENT")
    assert error["message"].startswith("Too many values in the table: 50002")


def test_calls_without_a_token_are_refused(http) -> None:
    assert http.post(f"/v2/{PARENT}/content:inspect", json={}).status_code == 401
