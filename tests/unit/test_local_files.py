"""Local files in directories where others may put links."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from airflow_provider_llmbeam.local_files import create, open_no_link


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Returns a file outside of the directory `shared`, to which a link and a linked directory in it lead."""
    (tmp_path / "home").mkdir()
    (tmp_path / "shared" / "sub").mkdir(parents=True)
    path = tmp_path / "home" / "secret"
    path.write_text("secret")
    (tmp_path / "shared" / "file").symlink_to(path)
    (tmp_path / "shared" / "directory").symlink_to(path.parent)
    (tmp_path / "shared" / "sub" / "own").write_text("own")
    return path


def test_a_file_is_created_read_and_emptied(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for content in (b"first", b"2"):
        with create(path, is_private=False) as file:
            file.write(content)
        assert path.read_bytes() == content
    with os.fdopen(open_no_link(path, os.O_RDONLY)) as text:
        assert text.read() == "2"
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~_umask()


def test_a_private_file_is_private_from_its_first_byte_and_also_if_it_existed(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.touch(mode=0o644)
    for each in (path, tmp_path / "b.json"):
        with create(each):
            assert stat.S_IMODE(each.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["file", "directory/secret"])
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC])
def test_a_link_and_a_linked_directory_below_the_root_are_not_followed(
    tmp_path: Path, secret: Path, name: str, flags: int
) -> None:
    with pytest.raises(OSError, match=r"Is a symbolic link, and none is followed here|Not a directory"):
        open_no_link(tmp_path / "shared" / name, flags, root=tmp_path / "shared")
    assert secret.read_text() == "secret"


def test_a_dangling_link_creates_no_file(tmp_path: Path) -> None:
    (tmp_path / "lease").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="Is a symbolic link"):
        create(tmp_path / "lease")
    assert not (tmp_path / "elsewhere").exists()


def test_without_a_root_the_directories_of_a_file_may_be_links(tmp_path: Path, secret: Path) -> None:
    os.close(open_no_link(tmp_path / "shared" / "directory" / "secret", os.O_RDONLY))


def test_a_root_may_be_a_link(tmp_path: Path, secret: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "shared")
    os.close(open_no_link(tmp_path / "link" / "sub" / "own", os.O_RDONLY, root=tmp_path / "link"))


def test_a_pipe_and_a_directory_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    for name in ("pipe", "directory"):
        with pytest.raises(PermissionError, match="Is no regular file"):
            open_no_link(tmp_path / name, os.O_RDONLY)


def test_no_descriptor_is_left_open(tmp_path: Path, secret: Path) -> None:
    before = len([*Path("/proc/self/fd").iterdir()])
    for name in ("file", "directory/secret", "sub", "lost", "sub/own"):
        try:
            os.close(open_no_link(tmp_path / "shared" / name, os.O_RDONLY, root=tmp_path / "shared"))
        except OSError:
            continue
    assert len([*Path("/proc/self/fd").iterdir()]) == before


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
