"""Which files rows may name, and that the file which was checked is the one which is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import Forbidden, RetryError, ServiceUnavailable
from google.auth.exceptions import DefaultCredentialsError, RefreshError, TransportError
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.elements import FailedRow, RowPrompt
from airflow_provider_llmbeam.pipeline.media.stored import MediaIdentifier, StoredMedia
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model.media import MediaError, MediaUnavailableError, local_path

PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)
SECRET = b"\x89PNG\r\n\x1a\nfernet_key"
VLLM = {"type": "openai", "name": "m", "base_url": "http://127.0.0.1:1/v1"}


def identifier(uri: str, root: Any = None, model: Any = VLLM) -> MediaIdentifier:
    spec = {
        "name": "job",
        "source": {"uri": "/rows.jsonl", "key": ["id"]},
        "prompt": {"template": "{{ row.id }}", "media": [{"uri": uri, "root": root}]},
        "model": model,
        "sink": {"uri": "/out"},
    }
    return MediaIdentifier(JobSpec.parse(spec))


def identified(found: MediaIdentifier, uri: str, given_type: str | None = None) -> RowPrompt | FailedRow:
    return found.identify(RowPrompt({"id": 1}, "", Prompt("What?", media=((uri, given_type),))))


def message(found: RowPrompt | FailedRow) -> str:
    assert isinstance(found, FailedRow), found
    assert found.failure.kind == "media_error"
    return found.failure.message


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Returns the directory that rows may name; beside it is a file of the worker."""
    directory = tmp_path / "pictures"
    (directory / "sub").mkdir(parents=True)
    (directory / "a.png").write_bytes(PNG)
    (directory / "sub" / "a.png").write_bytes(PNG)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "a.png").write_bytes(SECRET)
    return directory


@pytest.mark.parametrize(
    "address",
    [
        "http://169.254.169.254/latest/meta-data/a.png",
        "http://2852039166/a.png",
        "http://0xa9.0xfe.0xa9.0xfe/a.png",
        "http://[fd00:ec2::254]/a.png",
        "http://[::ffff:169.254.169.254/a.png",
        "http://metadata.google.internal/computeMetadata/v1/a.png",
        "HTTP://127.0.0.1:8080/a.png",
        "https://pictures.example.evil/a.png",
        "https://pictures.example@127.0.0.1/a.png",
        "https://pictures.example\\@127.0.0.1/a.png",
        "https://pictures.example/x/../../admin/a.png",
        "https://pictures.example/x/%2e%2e/admin/a.png",
        "https://pictures.example/x/..\\admin/a.png",
        "gs://others/a.png",
        "hdfs://name-node/a.png",
        "s3://others/a.png",
    ],
)
def test_a_root_binds_every_address_of_a_row(root: Path, address: str) -> None:
    found = identifier("{{ row.uri }}", [str(root), "https://pictures.example/x", "gs://rows/a"])
    assert "the only files that rows may name" in message(identified(found, address))


def test_below_several_roots_every_file_is_sent_and_the_bytes_of_a_row_itself_need_none(root: Path) -> None:
    found = identifier("{{ row.uri }}", [str(root), "https://pictures.example"])
    for address in (str(root / "a.png"), "https://pictures.example/b.png", "data:image/png;base64,iVBORw0KGgo="):
        assert isinstance(identified(found, address), RowPrompt)


def test_the_directory_that_a_template_begins_with_binds_what_its_server_looks_up(root: Path) -> None:
    found = identifier("https://pictures.example/x/{{ row.name }}")
    assert isinstance(identified(found, "https://pictures.example/x/a.png"), RowPrompt)
    assert "rows may name" in message(identified(found, "https://pictures.example/x/../a.png"))


@pytest.mark.parametrize(
    "template", ["file://{{ row.path }}", "{{ row.path }}", "/{{ row.path }}", "file:///{{ row.p }}"]
)
def test_a_template_without_a_directory_opens_no_file_of_the_worker(
    root: Path, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    monkeypatch.chdir(root)
    found = identifier(template)
    for address in ("a.png", f"file://{root}/a.png", str(root / "a.png")):
        assert "`root` does not say which files of this machine" in message(identified(found, address))


def test_a_path_that_looks_like_an_address_is_a_path(root: Path) -> None:
    """Beam takes such a text for a path, too, and would have opened it without a check."""
    (root / "x:").mkdir()
    address = f"{root}/x://../../home/a.png"
    assert "rows may name" in message(identified(identifier("{{ row.uri }}", str(root)), address))


@pytest.mark.parametrize("linked", ["a.png", "sub"])
def test_a_link_that_takes_the_place_of_a_checked_file_is_not_sent(root: Path, linked: str) -> None:
    checked = identified(identifier("{{ row.uri }}", str(root)), str(root / "sub" / "a.png"))
    assert isinstance(checked, RowPrompt)
    ((address, _),) = checked.prompt.media
    files = StoredMedia()
    assert files.open(address).read() == PNG
    opened = files.open(address)
    place = root / "sub" if linked == "sub" else root / "sub" / linked
    place.rename(root / "moved")
    place.symlink_to(root.parent / "home" / ("" if linked == "sub" else "a.png"))
    for read in (opened.read, opened.identity, opened.head, lambda: opened.opened().read()):
        with pytest.raises(MediaError, match=r"Is a symbolic link|Not a directory"):
            read()
    with pytest.raises(MediaError, match=r"Is a symbolic link|Not a directory"):
        files.open(address)


def test_another_file_in_the_place_of_an_opened_one_is_not_read(root: Path) -> None:
    opened = StoredMedia().open(str(root / "a.png"))
    (root / "sub" / "a.png").replace(root / "a.png")
    with pytest.raises(MediaError, match="was replaced while it was read"):
        opened.read()


def test_a_pipeline_of_ones_own_may_name_links(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    address = str(tmp_path / "link" / "a.png")
    assert StoredMedia(follows_links=True).open(address).read() == PNG
    with pytest.raises(MediaError, match="Not a directory"):
        StoredMedia().open(address)


@pytest.mark.parametrize(
    ("error", "is_outage"),
    [
        (DefaultCredentialsError("no credentials"), False),
        (RefreshError("the account was deleted"), False),
        (TransportError("no route"), True),
        (RetryError("timeout", ServiceUnavailable("down")), True),
        (ServiceUnavailable("down"), True),
        (ConnectionError("reset"), True),
        (Forbidden("no"), False),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"), False),
        (TypeError("a defect of a client"), False),
    ],
)
def test_only_a_service_that_is_down_for_all_ends_the_job(
    root: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, is_outage: bool
) -> None:
    def fail(uri: str) -> Any:
        raise error

    monkeypatch.setattr(storage, "cloud_object", fail)
    found = identifier("{{ row.uri }}")
    if is_outage:
        with pytest.raises(JobFailedError, match="a retry sends only"):
            identified(found, "gs://b/a.png")
    else:
        message(identified(found, "gs://b/a.png"))
    with pytest.raises(MediaUnavailableError if is_outage else MediaError):
        StoredMedia().open("gs://b/a.png")


@pytest.mark.parametrize(
    "address", ["hdfs://name-node/a.png", "ftp://h/a.png", "GS://b/a.png", "gs://b", "x://../a.png"]
)
def test_a_filesystem_that_is_not_there_fails_its_row(address: str) -> None:
    assert "a.png" in message(identified(identifier("{{ row.uri }}"), address)) or address == "gs://b"


@pytest.mark.fuzz
@given(
    st.text(max_size=20),
    st.sampled_from(
        ["", "file://", "http://", "https://[", "hdfs://", "ftp://", "data:", "data:image/png;base64,", "/", "//"]
    ),
    st.sampled_from([None, "image/png", "text/plain"]),
)
@example("[", "file://", None)
@example("\u2100.example/a.png", "https://", None)
@example("\x00", "/", None)
@example("\ud800", "", "image/png")
def test_whatever_a_row_names_it_is_a_prompt_or_a_failed_row(text: str, begin: str, mime_type: str | None) -> None:
    for root in (None, ["/lost", "https://h"]):
        identified(identifier("{{ row.uri }}", root), f"{begin}{text}", mime_type)
        local_path(f"{begin}{text}")
