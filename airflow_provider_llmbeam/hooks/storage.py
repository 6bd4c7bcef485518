"""Small files such as specs and reports, on Cloud Storage or on any filesystem that Airflow opens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from airflow.sdk import ObjectStoragePath

from airflow_provider_llmbeam import local_files
from airflow_provider_llmbeam.exceptions import CloudNotFoundError, CloudUnavailableError, RequestRefusedError
from airflow_provider_llmbeam.hooks.google.base import REQUEST_SECONDS, GoogleHook, retry
from airflow_provider_llmbeam.hooks.google.errors import CloudRequest, translate_errors, usable_connection
from airflow_provider_llmbeam.transport.object_keys import encrypt_objects
from airflow_provider_llmbeam.transport.redirects import direct


class StorageHook(GoogleHook):
    """Reads and writes objects by their address, `gs://BUCKET/OBJECT`.

    Every method raises a `CloudError`, see `hooks.google.errors`.

    Args:
        project: Project that is billed; by default that of the connection or the credentials.
        gcp_conn_id: Airflow connection of type `google_cloud_platform`.
        impersonation_chain: Service account to impersonate, or a chain of them.
        kms_key_name: Key of Cloud KMS that encrypts what is written. `None`: the default key of the bucket.
    """

    def __init__(
        self,
        project: str | None = None,
        gcp_conn_id: str = GoogleHook.default_conn_name,
        impersonation_chain: str | Sequence[str] | None = None,
        kms_key_name: str | None = None,
    ) -> None:
        super().__init__(project, gcp_conn_id, impersonation_chain)
        self._kms_key_name = kms_key_name

    def check(self, uri: str) -> None:
        """Checks that a directory can be listed, with one small request."""
        with self._bucket(uri, "list") as bucket:
            # Not the bucket itself: roles/storage.objectAdmin lacks storage.buckets.get.
            objects = bucket.list_blobs(prefix=_path(uri), max_results=1, timeout=REQUEST_SECONDS, retry=retry())
            next(iter(objects), None)

    def read(self, uri: str) -> str:
        """Reads a text object."""
        with self._bucket(uri, "read") as bucket:
            text: str = bucket.blob(_path(uri)).download_as_text(timeout=REQUEST_SECONDS, retry=retry())
            return text

    def exists(self, uri: str) -> bool:
        """Returns whether there is an object."""
        with self._bucket(uri, "read") as bucket:
            return bool(bucket.blob(_path(uri)).exists(timeout=REQUEST_SECONDS, retry=retry()))

    def list(self, prefix: str) -> list[str]:
        """Returns the addresses of the objects that begin with a prefix."""
        with self._bucket(prefix, "list") as bucket:
            found = bucket.list_blobs(prefix=_path(prefix), timeout=REQUEST_SECONDS, retry=retry())
            return [f"gs://{bucket.name}/{blob.name}" for blob in found]

    def write(self, uri: str, content: str | bytes, within_seconds: float | None = None) -> None:
        """Writes an object atomically, with retries, or with one request that has a timeout in seconds."""
        policy = retry() if within_seconds is None else None
        with self._bucket(uri, "write") as bucket:
            bucket.blob(_path(uri)).upload_from_string(
                content, timeout=within_seconds or REQUEST_SECONDS, retry=policy
            )

    def delete(self, uri: str) -> None:
        """Deletes an object."""
        with self._bucket(uri, "delete") as bucket:
            bucket.blob(_path(uri)).delete(timeout=REQUEST_SECONDS, retry=retry())

    @contextmanager
    def _bucket(self, uri: str, verb: str) -> Iterator[Any]:
        from google.cloud.storage import Client  # type: ignore[import-untyped]

        name = urlsplit(uri).netloc
        request = CloudRequest(
            action=f"{verb} {uri!r}",
            project=self.project,
            service="storage.googleapis.com",
            role="roles/storage.objectAdmin",
            missing=f"bucket {f'gs://{name}'!r}" if verb != "read" else f"object {uri!r}",
        )
        with usable_connection(self.gcp_conn_id):
            credentials = self.get_credentials()
        with translate_errors(request):
            client = direct(Client(self.project, credentials, client_options=self.get_client_options()))
            encrypt_objects(client, self._kms_key_name)
            yield client.bucket(name)


def _path(uri: str) -> str:
    return urlsplit(uri).path.lstrip("/")


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

    def write(self, uri: str, content: str | bytes, within_seconds: float | None = None) -> None:
        """Writes a file; the timeout is that of the filesystem."""
        found = content.encode() if isinstance(content, str) else content
        with _errors(uri):
            path = ObjectStoragePath(uri)
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.protocol in ("", "file"):
                with local_files.create(Path(path.path), is_private=False) as file:
                    file.write(found)
            else:
                path.write_bytes(found)

    def delete(self, uri: str) -> None:
        """Deletes a file."""
        with _errors(uri):
            ObjectStoragePath(uri).unlink()


def files_at(uri: str, gcp_conn_id: str, kms_key_name: str | None = None) -> StorageHook | ObjectStorage:
    """Returns the client of the filesystem of an address.

    Args:
        uri: The address.
        gcp_conn_id: Connection of type Google Cloud.
        kms_key_name: Key of Cloud KMS that encrypts what is written to Cloud Storage.
    """
    if not uri.startswith("gs://"):
        return ObjectStorage()
    return StorageHook(None, gcp_conn_id, kms_key_name=kms_key_name)


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
