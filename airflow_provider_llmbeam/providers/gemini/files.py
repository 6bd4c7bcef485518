"""The Files API of the Gemini Developer API, which keeps files for 48 hours.

Fields as in google-genai 2.34 (`files.py`) and ai.google.dev/api/files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import urlsplit

from airflow_provider_llmbeam.providers.batch import UploadedFile
from airflow_provider_llmbeam.providers.errors import ApiDeniedError, ApiNotFoundError, ApiUnavailableError
from airflow_provider_llmbeam.providers.rest import FileBody, RestClient, google_next_page
from airflow_provider_llmbeam.spec.model import GeminiModel
from airflow_provider_llmbeam.transport.server_reply import error_line, list_of, mapping_of, str_of, time_of

FILE_NAME = re.compile(r"files/[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class GeminiFile(UploadedFile):
    """An uploaded file of the Files API.

    Attributes:
        uri: Address by which requests name it.
        state: `PROCESSING`, `ACTIVE` or `FAILED`.
        error: Why it could not be processed, in the words of the provider.
        expires_at: Unix time at which the provider deletes it; 0 if it does not say so.
    """

    uri: str = ""
    state: str = ""
    error: str | None = None
    expires_at: float = 0.0


class GeminiFiles:
    """Uploads, finds and deletes files.

    Args:
        model: Model without `project`.
        http: Requests to the API.
    """

    def __init__(self, model: GeminiModel, http: RestClient) -> None:
        self._origin = model.address.rpartition("/v1beta/")[0]
        self._root = f"{self._origin}/v1beta"
        self._http = http

    def upload(
        self, display_name: str, mime_type: str, open_file: Callable[[], IO[bytes]], size: int, name: str = ""
    ) -> GeminiFile:
        """Uploads a file once.

        Args:
            display_name: Its display name.
            mime_type: Its MIME type.
            open_file: Opens the file.
            size: Its size, in bytes.
            name: Its name, which no other file has; '' leaves the choice to the server.

        Raises:
            ApiError: The file was not stored.
        """
        described = {"displayName": display_name, "mimeType": mime_type, **({"name": name} if name else {})}
        start = self._http.send_file(
            f"{self._origin}/upload/v1beta/files",
            {
                "X-Goog-Upload-Protocol": "resumable",
                "X-Goog-Upload-Command": "start",
                "X-Goog-Upload-Header-Content-Length": str(size),
                "X-Goog-Upload-Header-Content-Type": mime_type,
            },
            json={"file": described},
        )
        start.close()
        # The file goes to the host of the API, as with a `base_url` of google-genai: no other one gets the key.
        origin = urlsplit(self._origin)
        address = urlsplit(start.headers.get("X-Goog-Upload-URL", ""))
        with open_file() as file:
            reply = self._http.send_file(
                address._replace(scheme=origin.scheme, netloc=origin.netloc).geturl(),
                {"X-Goog-Upload-Command": "upload, finalize", "X-Goog-Upload-Offset": "0"},
                data=FileBody(file, size),
            )
        found = file_of(mapping_of(self._http.json_object(reply).get("file")))
        if found is None:
            raise ApiUnavailableError(f"The Gemini Developer API stored {display_name!r} without a name.")
        return found

    def find(self, name: str) -> GeminiFile | None:
        """Returns a file; `None` if it does not exist, or is one of another project."""
        try:
            return file_of(self._http.get(f"{self._root}/{name}"))
        except (ApiDeniedError, ApiNotFoundError):  # 403 is its answer for a file that does not exist
            return None

    def uploaded(self, prefix: str) -> Iterator[GeminiFile]:
        """Yields the uploaded files whose display name starts with a prefix."""
        # The API has no filter.
        for page in self._http.pages(f"{self._root}/files", {"pageSize": "100"}, google_next_page):
            for file in map(file_of, map(mapping_of, list_of(page.get("files")))):
                if file is not None and file.display_name.startswith(prefix):
                    yield file

    def delete(self, name: str) -> None:
        """Deletes an uploaded file; does nothing if it does not exist."""
        if not FILE_NAME.fullmatch(name):
            return
        try:
            self._http.delete(f"{self._root}/{name}")
        except ApiDeniedError:  # see `find`
            if self.find(name) is not None:
                raise


open_files = GeminiFiles


def file_of(reply: Mapping[str, Any]) -> GeminiFile | None:
    """Returns the uploaded file that a `File` describes; `None` for a result file, and without a valid name."""
    name = str_of(reply.get("name"))
    if not FILE_NAME.fullmatch(name) or str_of(reply.get("source")) == "GENERATED":
        return None
    return GeminiFile(
        name=name,
        display_name=str_of(reply.get("displayName")),
        created_at=time_of(reply.get("createTime")) or 0.0,
        uri=str_of(reply.get("uri")),
        state=str_of(reply.get("state")),
        error=error_line(reply.get("error")),
        expires_at=time_of(reply.get("expirationTime")) or 0.0,
    )
