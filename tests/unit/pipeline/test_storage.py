from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest
from apache_beam.io.filesystems import FileSystems
from apache_beam.io.gcp import gcsio
from apache_beam.options.pipeline_options import PipelineOptions
from hypothesis import given
from hypothesis import strategies as st
from llmbeam_sandbox import Sandbox

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.records import read_records
from airflow_provider_llmbeam.pipeline.sinks.merge_files import read_rows
from tests.hostile import examples


@pytest.fixture(params=["local", "gs"])
def folder(
    request: pytest.FixtureRequest, credentials: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    if request.param == "local":
        yield f"{tmp_path}/"
        return
    with Sandbox(buckets=("rows",)) as sandbox:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", sandbox.authorized_url)
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


def test_a_file_that_is_replaced_is_never_missing_or_half_written(folder: str) -> None:
    for content in (b"first", b"second"):
        storage.replace(f"{folder}counts.json", content)
        with storage.open(f"{folder}counts.json") as file:
            assert file.read() == content
    assert storage.match(f"{folder}counts*") == [f"{folder}counts.json"]
    if not folder.startswith("gs://"):
        assert stat.S_IMODE(Path(f"{folder}counts.json").stat().st_mode) == 0o600


def test_two_processes_that_replace_one_file_write_neither_into_the_part_of_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, create = f"{tmp_path}/rate.json", storage.create

    def interrupted(part: str, **options: bool) -> IO[bytes]:
        file = create(part, **options)
        monkeypatch.setattr(storage, "create", create)
        storage.replace(uri, b"of the other process")
        assert storage.read(uri) == b"of the other process"
        return file

    monkeypatch.setattr(storage, "create", interrupted)
    storage.replace(uri, b"mine")
    assert storage.read(uri) == b"mine"
    assert [each.name for each in tmp_path.iterdir()] == ["rate.json"]


def test_a_file_that_cannot_be_replaced_leaves_no_part(tmp_path: Path) -> None:
    (tmp_path / "rate.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        storage.replace(f"{tmp_path}/rate.json", b"new")
    assert [each.name for each in tmp_path.iterdir()] == ["rate.json"]


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
    storage.delete([f"{folder}b.txt"])  # as another process may have done it


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


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_private_directory_is_made_once_and_its_parents_keep_the_umask(tmp_path: Path) -> None:
    for _ in "ab":
        storage.make_private(f"{tmp_path}/out/.llmbeam/")
    assert mode_of(tmp_path / "out" / ".llmbeam") == 0o700
    assert mode_of(tmp_path / "out") == 0o755


def test_a_directory_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    storage.make_private(f"{tmp_path}/")
    assert mode_of(tmp_path) == 0o2770


def test_a_file_in_the_place_of_a_private_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(
        JobSpecError, match=r"state/' holds the state .*: File exists\. Nothing was sent or billed\."
    ):
        storage.make_private(f"{tmp_path}/state/")


@pytest.mark.parametrize("folder", ["gs"], indirect=True)
def test_an_object_store_has_its_own_access_rules(folder: str) -> None:
    storage.make_private(f"{folder}state/")
    with storage.create(f"{folder}a.txt", is_private=True) as file:
        file.write(b"one\n")
    assert storage.match(f"{folder}**") == [f"{folder}a.txt"]


def test_a_private_file_stays_private_when_it_is_renamed(tmp_path: Path) -> None:
    for name, is_private in (("report.json", True), ("answers.jsonl", False)):
        with storage.create(f"{tmp_path}/staging/{name}", is_private=is_private) as file:
            file.write(b"{}\n")
        storage.rename({f"{tmp_path}/staging/{name}": f"{tmp_path}/{name}"})
    assert (mode_of(tmp_path / "report.json"), mode_of(tmp_path / "answers.jsonl")) == (0o600, 0o644)


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(PermissionError, match=r"Not a regular file: .*pipe\.jsonl"):
        storage.open(f"{tmp_path}/pipe.jsonl")


def test_lines_of_cloud_storage_are_read_in_blocks_by_merges_and_by_sinks(
    credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, sizes = gcsio.BeamBlobReader.read, list[int]()

    def counted(file: gcsio.BeamBlobReader, size: int = -1) -> bytes:
        sizes.append(size)
        return read(file, size)

    monkeypatch.setattr(gcsio.BeamBlobReader, "read", counted)
    with Sandbox(buckets=("rows",)) as sandbox:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", sandbox.authorized_url)
        with storage.create("gs://rows/staged.jsonl") as file:
            file.write(b'{"id": 1}\n' * 1000)
        assert len([*read_rows({0: "gs://rows/staged.jsonl"}, "jsonl")]) == 1000
        assert len([*read_records({0: "gs://rows/staged.jsonl"})]) == 1000
    assert len(sizes) < 10


def test_changes_that_several_jobs_make_at_once_are_all_made(folder: str) -> None:
    def add_one(content: bytes | None) -> bytes:
        return str(int(content or b"0") + 1).encode()

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(storage.change, f"{folder}state/count", add_one) for _ in range(3)]:
            done.result()
    assert storage.read_if_exists(f"{folder}state/count") == b"3"
    assert storage.read_if_exists(f"{folder}state/other") is None


def found(uri: str, folder: str = "") -> list[str]:
    return [file.path.removeprefix(folder) for file in storage.find(uri)]


def test_two_stars_and_a_slash_are_any_number_of_folders_or_none(folder: str) -> None:
    for name in ("a.jsonl", "b/c.jsonl", "b/d/e.jsonl", "b/d/e.csv"):
        write(f"{folder}data/{name}") if folder.startswith("gs://") else write_below(f"{folder}data/{name}")
    for pattern in ("**/*.jsonl", "**.jsonl"):
        assert found(f"{folder}data/{pattern}", folder) == [
            "data/a.jsonl",
            "data/b/c.jsonl",
            "data/b/d/e.jsonl",
        ]
    assert found(f"{folder}data/**/d/**/e.*", folder) == ["data/b/d/e.csv", "data/b/d/e.jsonl"]
    assert found(f"{folder}data/**/b/*", folder) == ["data/b/c.jsonl"]
    assert found(f"{folder}data/", folder) == ["data/a.jsonl"]


@pytest.mark.parametrize("name", ["export [2025].jsonl", "what?.jsonl", "all*.jsonl", "[b-a].jsonl", "a\\b.jsonl"])
def test_a_file_of_exactly_the_name_is_that_file_alone(folder: str, name: str) -> None:
    for each in (name, "whatx.jsonl", "allx.jsonl", "export 2.jsonl"):
        write(f"{folder}{each}")
    assert found(f"{folder}{name}", folder) == [name]
    assert f"{folder}{name}" in found(f"{folder}*.jsonl")


def test_a_glob_needs_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.csv", "b.csv", "c.txt"):
        write(name)
    write_below("d/e.csv")
    assert found("*.csv") == ["./a.csv", "./b.csv"]
    assert found("[ab].c*") == ["./a.csv", "./b.csv"]
    assert found("**/*.csv") == ["./a.csv", "./b.csv", "./d/e.csv"]
    assert found("e.csv") == found("x*.csv") == found("[b-a].csv") == []


names = st.text("ab.[]!-^?*&|~\\", min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))
parts = st.lists(st.sampled_from(["a", "b", "*", "?", "[ab]", "[!a]", "a*", "*.", ".*"]), min_size=1, max_size=2)
globs = st.tuples(st.lists(st.sampled_from(["**", "*", "a", "[!b]"]), max_size=3), parts.map("".join))


@pytest.mark.fuzz
@examples(0.3)
@given(st.lists(st.lists(names, min_size=1, max_size=3).map("/".join), max_size=6), globs)
def test_a_glob_finds_what_python_finds(
    tmp_path_factory: pytest.TempPathFactory, paths: list[str], pattern: tuple[list[str], str]
) -> None:
    folder = tmp_path_factory.mktemp("tree")
    for path in paths:
        with suppress(OSError):  # a file where another path needs a folder
            write_below(str(folder / path))
    uri = "/".join((str(folder), *pattern[0], pattern[1]))
    expected = glob.glob(uri, recursive=True, include_hidden=True)  # noqa: PTH207 - `Path.glob` has no hidden files
    assert found(uri) == sorted({path for path in expected if Path(path).is_file()})
    for file in folder.rglob("*"):
        if file.is_file():
            assert found(str(file)) == [str(file)]


def write_below(path: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(b"one\n")
