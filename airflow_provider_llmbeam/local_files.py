"""Local files that others may have replaced by a link: opened without following one."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

# Opening a pipe or a terminal neither waits nor takes it over.
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# `O_PATH`, of Linux, needs no right to read the directory.
_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)


def open_no_link(path: Path, flags: int, mode: int = 0o600, *, root: Path | None = None) -> int:
    """Opens a regular file without following a link; returns its descriptor.

    Whoever may write to a directory can put a link there, by which this process would read or overwrite any other
    file of its user.

    Args:
        path: The file.
        flags: Flags of `os.open`.
        mode: Mode of a new file.
        root: Directory below which no directory may be a link either; `None` if they all may.

    Raises:
        OSError: It cannot be opened, is a link or below one, or is no regular file.
    """
    root = path.parent if root is None else root
    *directories, name = path.relative_to(root).parts
    parent = os.open(root, _DIRECTORY & ~os.O_NOFOLLOW)
    try:
        for directory in directories:
            above, parent = parent, os.open(directory, _DIRECTORY, dir_fd=parent)
            os.close(above)
        file = os.open(name, flags | _FLAGS, mode, dir_fd=parent)
    except OSError as error:
        if error.errno == errno.ELOOP:  # `ENOTDIR` in place of a directory (open(2))
            raise PermissionError(
                errno.EPERM, "Is a symbolic link, and none is followed here", str(path)
            ) from None
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(parent)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise PermissionError(errno.EPERM, "Is no regular file", str(path))
    return file


def create(path: Path, *, is_private: bool = True) -> IO[bytes]:
    """Opens a new or emptied file for writing, without following a link.

    Args:
        path: The file.
        is_private: Whether nobody but its owner can read it, also if it exists.

    Raises:
        OSError: See `open_no_link`.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    file = os.fdopen(open_no_link(path, flags, 0o600 if is_private else 0o666), "wb")
    if is_private:
        os.fchmod(file.fileno(), 0o600)
    return file


def make_private(directory: Path) -> None:
    """Makes a directory that only its owner can read; one that exists keeps its mode.

    Raises:
        OSError: It cannot be made.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)


def link_fault(directory: Path) -> str | None:
    """Returns what is wrong with a directory of this package that is a link, or has one in it; else `None`."""
    found = (Path(parent, name) for parent, names, _ in os.walk(directory) for name in names)
    link = next((path for path in (directory, *found) if path.is_symlink()), None)
    if link is None:
        return None
    return (
        f"{str(link)!r} is a link to {str(link.readlink())!r}. The state of jobs is written below no link, as "
        "whoever may write there could have other files of this account overwritten. Remove it, and name the "
        "directory that it leads to in `state_uri` or `sink.uri`."
    )
