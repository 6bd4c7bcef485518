from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tracemalloc
import zlib
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline.sources.lines import (
    SHOWN_SIZE,
    Line,
    is_compressed,
    open_plain,
    read_lines,
    read_part,
)
from tests.hostile import examples


class SmallBlocks(io.BytesIO):
    """Returns at most three bytes at once, so that lines cross the blocks of the reader."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(3)


contents = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r\n", b"\r", b"\xff"])).map(b"".join)


def split(content: bytes) -> list[tuple[int, bytes]]:
    """Returns the lines with their positions."""
    lines, offset = [], 0
    for line in io.BytesIO(content):
        lines.append((offset, line.removesuffix(b"\n").removesuffix(b"\r")))
        offset += len(line)
    return lines


@pytest.mark.fuzz
@given(contents)
def test_all_lines_are_read_in_order(content: bytes) -> None:
    for file in (io.BytesIO(content), SmallBlocks(content)):
        assert [(line.offset, line.text) for line in read_lines(file)] == split(content)


@pytest.mark.fuzz
@given(contents, st.integers(1, 20))
def test_the_lines_from_a_position_on_are_those_that_begin_there(content: bytes, start: int) -> None:
    expected = [offset for offset, _ in split(content) if offset >= start]
    assert [line.offset for line in read_lines(SmallBlocks(content), start)] == expected


@pytest.mark.fuzz
@examples(0.3)
@given(contents, st.integers(1, 20))
def test_each_line_is_in_the_one_part_in_which_it_begins(tmp_path_factory, content: bytes, size: int) -> None:
    path = tmp_path_factory.mktemp("lines") / "rows.jsonl"
    path.write_bytes(content)
    starts = range(0, len(content), size)
    found = [line.offset for start in starts for line in read_part((str(path), start), size)]
    assert found == [offset for offset, _ in split(content)]


@pytest.mark.parametrize("size", [2001, 5000])
def test_of_a_line_that_is_too_long_the_beginning_and_the_size_are_known(size: int) -> None:
    content = b"first\n" + b"x" * size + b"\nlast"
    for file in (io.BytesIO(content), SmallBlocks(content)):
        first, long, last = read_lines(file, max_size=2000)
        assert (first, last) == (Line(0, 5, b"first"), Line(7 + size, 4, b"last"))
        assert (long.offset, long.size, long.text) == (6, size, b"x" * SHOWN_SIZE)
        assert first.is_complete
        assert not long.is_complete


@pytest.mark.parametrize("ending", ["gz", "bz2", "xz", "zst", "deflate"])
def test_a_compressed_file_is_read(tmp_path: Path, ending: str) -> None:
    from apache_beam.io.filesystems import FileSystems

    path = tmp_path / f"rows.jsonl.{ending}"
    content = b"".join(b"line %d\n" % number for number in range(50_000))
    with FileSystems.create(str(path)) as file:
        file.write(content)
    with open_plain(str(path)) as file:
        assert sum(line.text == b"line %d" % number for number, line in enumerate(read_lines(file))) == 50_000


COMPRESS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
    "deflate": zlib.compress,
}


def expanded(path: Path, content: bytes) -> bytes:
    path.write_bytes(content)
    with open_plain(str(path)) as file:
        return b"".join(line.text for line in read_lines(file))


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_compressed_file_that_was_cut_off_is_an_error_and_not_the_end_of_its_rows(
    tmp_path: Path, ending: str
) -> None:
    path, part = tmp_path / f"rows.jsonl.{ending}", COMPRESS[ending](b"row\n")
    for cut in (part[:-3], part + part[: len(part) // 2]):
        with pytest.raises(JobFailedError, match=rf"'{path}' ends within its compressed data, so that rows are"):
            expanded(path, cut)
    with pytest.raises(JobSpecError, match=rf"'{path}' cannot be expanded: .* Nothing was sent or billed\."):
        expanded(path, b"no compressed data")


@pytest.mark.parametrize("ending", COMPRESS)
def test_the_parts_of_a_compressed_file_may_end_where_a_step_of_the_reader_does(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = COMPRESS[ending](b"row\n")
    monkeypatch.setattr("airflow_provider_llmbeam.pipeline.sources.lines._COMPRESSED_BYTES", len(part))
    assert expanded(tmp_path / f"rows.{ending}", part * 3 + bytes(512)) == b"rowrowrow"
    assert expanded(tmp_path / f"rows.{ending}", b"") == b""


def test_a_compressed_line_is_not_expanded_as_a_whole(tmp_path: Path) -> None:
    """Beam expands 16 MiB at once, which may have 16 GB."""
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b"x" * 2**24) * 8 + gzip.compress(b"\nlast"))
    tracemalloc.start()
    with open_plain(str(path)) as file:
        long, last = read_lines(file, max_size=2**20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (long.size, last.text) == (2**27, b"last")
    assert peak < 2**25, "seen: 12 MB"


@pytest.mark.fuzz
@examples(0.3)
@given(
    contents.filter(bool),
    st.sampled_from([ending for ending in COMPRESS if ending != "deflate"]),
    st.integers(1, 30),
)
def test_a_file_that_is_compressed_under_another_name_is_read(
    tmp_path_factory, content: bytes, ending: str, size: int
) -> None:
    path = tmp_path_factory.mktemp("lines") / "rows.jsonl"
    path.write_bytes(COMPRESS[ending](content))
    starts = range(0, path.stat().st_size, size)
    found = [(line.offset, line.text) for start in starts for line in read_part((str(path), start), size)]
    assert found == split(content)
    assert is_compressed(str(path))
