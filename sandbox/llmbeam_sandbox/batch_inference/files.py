"""The Files APIs of the Gemini Developer API and of OpenAI."""

from __future__ import annotations

import base64
import hashlib
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any

from llmbeam_sandbox.batch_inference.state import Batches
from llmbeam_sandbox.core.clock import Timeline, timestamp
from llmbeam_sandbox.core.methods import Method
from llmbeam_sandbox.core.responses import Reply, json_reply
from llmbeam_sandbox.core.rest import RestCall, RestError, Route, page
from llmbeam_sandbox.core.uploads import BINARY_TYPE, parts
from llmbeam_sandbox.models.media import FILES_ADDRESS, UploadedMedia

GEMINI_FILE_METHODS: tuple[Method, ...] = tuple(
    f"gemini.files.{name}" for name in ("delete", "download", "get", "list", "upload")
)
OPENAI_FILE_METHODS: tuple[Method, ...] = tuple(
    f"openai.files.{name}" for name in ("content", "create", "delete", "list", "retrieve")
)
KEPT_SECONDS = 48 * 3600.0
"""Time after which the Developer API deletes a file; here it stays.

Source: ai.google.dev/gemini-api/docs/files.
"""
_GEMINI = r"/(?:v1beta|v1alpha)/files"
_GEMINI_FILE = rf"{_GEMINI}/(?P<file>[^/:]+)"
_OPENAI_FILE = r"/v1/files/(?P<file>[^/]+)"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One file.

    Attributes:
        name: Full name or id.
        data: Content.
        label: Display name, or name of the file.
        created_at: Time of creation, in seconds since the epoch.
        content_type: MIME type.
        purpose: Purpose in OpenAI's terms: "batch_output" for results.
    """

    name: str
    data: bytes
    label: str
    created_at: float
    content_type: str = "application/jsonl"
    purpose: str = "batch"

    @property
    def is_result(self) -> bool:
        """Whether a job has written it."""
        return self.purpose == "batch_output"


class Files:
    """The files of one provider, in the order of their creation.

    Args:
        timeline: Its clock.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.all: dict[str, StoredFile] = {}

    def add(self, name: str, data: bytes, label: str, **fields: str) -> StoredFile:
        """Adds a file; `fields` are `content_type` and `purpose`."""
        file = StoredFile(name=name, data=data, label=label, created_at=self._timeline.now(), **fields)
        self.all[name] = file
        return file

    def clear(self) -> None:
        """Removes all files."""
        self.all.clear()

    def route(self, verb: str, path: str, method: Method, work: Callable[[RestCall], Reply]) -> Route:
        """Returns a route whose handler finds all results that are due."""

        def settled(call: RestCall) -> Reply:
            with self._timeline.settled():
                return work(call)

        return Route(verb=verb, pattern=re.compile(path), method=method, work=settled)


class GeminiFiles(Files):
    """The Files API of the Gemini Developer API, with resumable uploads.

    Attributes:
        processing_seconds: Time from the upload of a video until requests may name it, in seconds.
    """

    def __init__(self, timeline: Timeline) -> None:
        super().__init__(timeline)
        self._uploads: dict[str, tuple[StoredFile, bytearray]] = {}
        self.processing_seconds = 0.0

    def clear(self) -> None:
        """Removes all files and uploads."""
        super().clear()
        self._uploads.clear()

    def routes(self) -> list[Route]:
        """Returns the routes."""
        return [
            self.route("POST", "/upload/(?:v1beta|v1alpha)/files", "gemini.files.upload", self._upload),
            self.route("GET", _GEMINI, "gemini.files.list", self._list),
            self.route("GET", _GEMINI_FILE, "gemini.files.get", lambda call: self._shown(self.file(call))),
            self.route("GET", f"(?:/download)?{_GEMINI_FILE}:download", "gemini.files.download", self._download),
            self.route("DELETE", _GEMINI_FILE, "gemini.files.delete", self._delete),
        ]

    def file(self, call: RestCall) -> StoredFile:
        """Returns the file that a path names.

        Raises:
            RestError: There is none.
        """
        return self.named(f"files/{call.names['file']}")

    def named(self, name: str) -> StoredFile:
        """Returns a file.

        Raises:
            RestError: There is none, which the service does not tell from one of another caller.
        """
        if name not in self.all:
            own = name.removeprefix("files/")
            raise RestError(403, f"You do not have permission to access the File {own} or it may not exist.")
        return self.all[name]

    def _upload(self, call: RestCall) -> Reply:
        command = call.headers.get("x-goog-upload-command", "")
        if command == "start":
            return self._begin(call)
        upload_id = call.query.get("upload_id", "")
        if upload_id not in self._uploads:
            raise RestError(404, "No such upload session.")
        file, data = self._uploads[upload_id]
        if call.headers.get("x-goog-upload-offset", "0") != str(len(data)):
            raise RestError(400, f"The upload offset must be {len(data)}.")
        data += call.body
        if "finalize" not in command:
            return json_reply({}, headers={"X-Goog-Upload-Status": "active"})
        del self._uploads[upload_id]
        made = self.add(file.name, bytes(data), file.label, content_type=file.content_type)
        shown = _gemini(made, is_active=self._is_active(made))
        return json_reply({"file": shown}, headers={"X-Goog-Upload-Status": "final"})

    def _begin(self, call: RestCall) -> Reply:
        fields: Mapping[str, Any] = call.fields().get("file") or {}
        name = str(fields.get("name") or f"files/{uuid.uuid4().hex[:12]}")
        if name in self.all:
            raise RestError(409, f"Requested entity already exists: {name}.")
        upload_id = uuid.uuid4().hex
        content_type = call.headers.get("x-goog-upload-header-content-type", BINARY_TYPE)
        # google-genai sends the names of Python.
        label = str(fields.get("displayName") or fields.get("display_name") or "")
        file = StoredFile(name=name, data=b"", label=label, created_at=0.0, content_type=content_type)
        self._uploads[upload_id] = file, bytearray()
        url = f"{call.base_url}/upload/v1beta/files?upload_id={upload_id}&upload_protocol=resumable"
        return json_reply({}, headers={"X-Goog-Upload-URL": url, "X-Goog-Upload-Status": "active"})

    def find_upload(self, name: str) -> UploadedMedia | None:
        """Returns an uploaded file, for a request that names it; None if there is none."""
        file = self.all.get(name)
        return None if file is None or file.is_result else UploadedMedia(file.data, self._is_active(file))

    def _is_active(self, file: StoredFile) -> bool:
        is_video = file.content_type.startswith("video/")
        return not is_video or self._timeline.now() >= file.created_at + self.processing_seconds

    def _shown(self, file: StoredFile) -> Reply:
        return json_reply(_gemini(file, is_active=self._is_active(file)))

    def _list(self, call: RestCall) -> Reply:
        files, token = page(call, [_gemini(file) for file in self.all.values()], default=10, size="pageSize")
        return json_reply({"files": files, **token} if files else {})

    def _download(self, call: RestCall) -> Reply:
        file = self.file(call)
        if not file.is_result:
            raise RestError(400, f"The file {file.name} was uploaded and cannot be downloaded.")
        return Reply(chunks=(file.data,), content_type=file.content_type)

    def _delete(self, call: RestCall) -> Reply:
        del self.all[self.file(call).name]
        return json_reply({})


class OpenAIFiles(Files):
    """The Files API of OpenAI.

    Args:
        batches: Timeline and settings.
    """

    def __init__(self, batches: Batches) -> None:
        super().__init__(batches.timeline)
        self._batches = batches

    def routes(self) -> list[Route]:
        """Returns the routes."""
        return [
            self.route("POST", "/v1/files", "openai.files.create", self._create),
            self.route("GET", "/v1/files", "openai.files.list", self._list),
            self.route(
                "GET", _OPENAI_FILE, "openai.files.retrieve", lambda call: json_reply(_openai(self.file(call)))
            ),
            self.route("GET", f"{_OPENAI_FILE}/content", "openai.files.content", self._content),
            self.route("DELETE", _OPENAI_FILE, "openai.files.delete", self._delete),
        ]

    def file(self, call: RestCall) -> StoredFile:
        """Returns the file that a path names.

        Raises:
            RestError: There is none.
        """
        file = self.all.get(call.names["file"])
        if file is None:
            raise RestError(404, f"No such File object: {call.names['file']}")
        return file

    def _create(self, call: RestCall) -> Reply:
        fields: dict[str, tuple[str, bytes]] = {}
        for part in parts(call.headers.get("content-type", ""), call.body):
            header = Message()
            header["content-disposition"] = part.headers.get("content-disposition", "")
            name = str(header.get_param("name", header="content-disposition") or "")
            fields[name] = header.get_filename() or "", part.body
        if "file" not in fields or not fields.get("purpose", ("", b""))[1]:
            raise RestError(400, "'file' and 'purpose' are required properties")
        label, data = fields["file"]
        if "filename" in self._batches.settings.without:
            label = "upload"
        made = self.add(f"file-{uuid.uuid4().hex[:22]}", data, label, purpose=fields["purpose"][1].decode())
        return json_reply(_openai(made))

    def _list(self, call: RestCall) -> Reply:
        purpose = call.query.get("purpose")
        found = [_openai(file) for file in self.all.values() if purpose in (None, file.purpose)]
        return json_reply(openai_page(call, found[::-1], 10_000))

    def _content(self, call: RestCall) -> Reply:
        return Reply(chunks=(self.file(call).data,), content_type=BINARY_TYPE)

    def _delete(self, call: RestCall) -> Reply:
        file = self.file(call)
        del self.all[file.name]
        return json_reply({"id": file.name, "object": "file", "deleted": True})


def openai_page(call: RestCall, found: list[dict[str, Any]], default: int) -> dict[str, Any]:
    """Returns the part of a list that follows `after`, at most `limit` of it, as OpenAI does."""
    after = call.query.get("after")
    ids = [one["id"] for one in found]
    start = ids.index(after) + 1 if after in ids else 0
    shown = found[start : start + call.number("limit", default)]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": start + len(shown) < len(found),
    }


def _gemini(file: StoredFile, *, is_active: bool = True) -> dict[str, Any]:
    shown = {
        "name": file.name,
        "displayName": file.label,
        "mimeType": file.content_type,
        "sizeBytes": str(len(file.data)),
        "createTime": timestamp(file.created_at),
        "updateTime": timestamp(file.created_at),
        "expirationTime": timestamp(file.created_at + KEPT_SECONDS),
        "sha256Hash": base64.b64encode(hashlib.sha256(file.data).hexdigest().encode()).decode(),
        "uri": f"{FILES_ADDRESS}{file.name}",
        "state": "ACTIVE" if is_active else "PROCESSING",
        "source": "GENERATED" if file.is_result else "UPLOADED",
    }
    return shown | {"downloadUri": f"{FILES_ADDRESS}{file.name}:download?alt=media"} if file.is_result else shown


def _openai(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.name,
        "object": "file",
        "bytes": len(file.data),
        "created_at": int(file.created_at),
        "filename": file.label,
        "purpose": file.purpose,
        "status": "processed",
        "expires_at": None,
    }
