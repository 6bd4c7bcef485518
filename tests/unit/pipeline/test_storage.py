from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from apache_beam.io.filesystems import FileSystems
from apache_beam.io.gcp import gcsio
from apache_beam.options.pipeline_options import PipelineOptions

from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.sandbox import Sandbox


@pytest.fixture(params=["local", "gs"])
def folder(
    request: pytest.FixtureRequest, credentials: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    if request.param == "local":
        yield f"{tmp_path}/"
        return
    with Sandbox(buckets=("rows",)) as sandbox:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", sandbox.url)
        yield "gs://rows/"


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The options of each client of Cloud Storage that Beam makes."""
    made: list[object] = []
    create = gcsio.create_storage_client

    def counted(options: PipelineOptions) -> object:
        made.append(options)
        return create(options)

    monkeypatch.setattr(gcsio, "create_storage_client", counted)
    monkeypatch.setattr(FileSystems, "_pipeline_options", PipelineOptions())
    return made


def write(uri: str) -> None:
    with storage.create(uri) as file:
        file.write(b"one\n")


def test_a_file_is_written_found_renamed_read_and_deleted(folder: str) -> None:
    write(f"{folder}a.txt")
    assert storage.exists(f"{folder}a.txt")
    assert storage.match(f"{folder}*.txt") == [f"{folder}a.txt"]
    assert [found.size_in_bytes for found in storage.match_metadata(f"{folder}*.txt")] == [4]
    storage.rename({f"{folder}a.txt": f"{folder}b.txt"})
    assert not storage.exists(f"{folder}a.txt")
    with storage.open(f"{folder}b.txt") as file:
        assert file.read() == b"one\n"
    storage.delete([f"{folder}b.txt"])
    assert not storage.has_match(f"{folder}*.txt")


def test_nothing_is_renamed_and_deleted_without_an_address() -> None:
    storage.rename({})
    storage.delete([])


@pytest.mark.parametrize("folder", ["gs"], indirect=True)
def test_all_files_of_a_job_share_one_client(folder: str, clients: list[object]) -> None:
    for name in "abc":
        write(f"{folder}{name}.txt")
    storage.delete(storage.match(f"{folder}*"))
    assert len(clients) == 1


@pytest.mark.parametrize("folder", ["gs"], indirect=True)
def test_the_next_job_of_a_process_has_a_client_of_its_own(folder: str, clients: list[object]) -> None:
    write(f"{folder}a.txt")
    options = PipelineOptions(["--project=another"])
    FileSystems.set_options(options)
    write(f"{folder}b.txt")
    write(f"{folder}c.txt")
    assert len(clients) == 2
    assert clients[-1] is options
