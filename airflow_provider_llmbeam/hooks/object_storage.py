"""Text files on any filesystem that a job elsewhere may use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk import ObjectStoragePath

from airflow_provider_llmbeam.exceptions import CloudNotFoundError, CloudUnavailableError, RequestRefusedError
from airflow_provider_llmbeam.hooks.storage import StorageHook


class ObjectStorage:
    """Reads and writes files with Airflow's object storage, with the credentials of the environment.

    Every method raises a `CloudError`.
    """

    def exists(self, uri: str) -> bool:
        """Returns whether there is a file."""
        with _errors(uri):
            return bool(ObjectStoragePath(uri).exists())

    def read(self, uri: str) -> str:
        """Reads a text file."""
        with _errors(uri):
            return str(ObjectStoragePath(uri).read_text())

    def list(self, prefix: str) -> list[str]:
        """Returns the addresses of the files that begin with a prefix, whose last part is that of a name."""
        directory, _, name = prefix.rpartition("/")
        with _errors(prefix):
            path = ObjectStoragePath(directory)
            found = path.iterdir() if path.exists() else ()
            return [str(file) for file in found if file.name.startswith(name)]

    def write(self, uri: str, text: str, within_seconds: float | None = None) -> None:
        """Writes a text file; the timeout is that of the filesystem."""
        with _errors(uri):
            path = ObjectStoragePath(uri)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def files_at(uri: str, gcp_conn_id: str) -> StorageHook | ObjectStorage:
    """Returns the client of the filesystem of an address."""
    return StorageHook(None, gcp_conn_id) if uri.startswith("gs://") else ObjectStorage()


@contextmanager
def _errors(uri: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise CloudNotFoundError(f"There is no file at {uri!r}.") from error
    except OSError as error:
        raise CloudUnavailableError(f"The filesystem of {uri!r} did not answer: {error}.") from error
    except (ImportError, ValueError) as error:  # such as s3fs, which is not installed
        raise RequestRefusedError(f"{uri!r} cannot be opened by Airflow's object storage: {error}.") from error
