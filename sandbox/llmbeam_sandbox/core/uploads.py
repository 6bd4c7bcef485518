"""Uploads to Google's APIs: multipart bodies, and resumable sessions of several requests."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from typing import Any

from llmbeam_sandbox.core.responses import Reply
from llmbeam_sandbox.core.rest import RestCall, RestError

CHUNK_BYTES = 262_144
"""Size that all chunks but the last are a multiple of, in bytes.

Source: docs.cloud.google.com/storage/docs/performing-resumable-uploads.
"""
BINARY_TYPE = "application/octet-stream"
_CONTENT_RANGE = re.compile(r"bytes (?:(?P<first>\d+)-(?P<last>\d+)|\*)/(?P<total>\d+|\*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a multipart body, header names in lower case."""

    headers: Mapping[str, str]
    body: bytes


def parts(content_type: str, body: bytes) -> list[Part]:
    """Splits a multipart body.

    Raises:
        RestError: There is no boundary, or no part.
    """
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_boundary()
    if boundary is None:
        raise RestError(400, "Missing multipart boundary.", "badContent")
    # Some clients (apitools) end lines with a bare line feed.
    pieces = re.split(rb"(?:\r?\n|^)--" + re.escape(boundary.encode()), body)[1:]
    found = [_part(piece) for piece in pieces if not piece.startswith(b"--")]
    if not found:
        raise RestError(400, "Malformed multipart body.", "badContent")
    return found


def _part(piece: bytes) -> Part:
    head, _, body = re.sub(rb"^[ \t]*\r?\n", b"", piece, count=1).partition(
        b"\r\n\r\n" if b"\r\n" in piece else b"\n\n"
    )
    return Part(headers=headers(head.decode(errors="replace").splitlines()), body=body)


def headers(lines: list[str]) -> dict[str, str]:
    """Returns header lines as a mapping, names in lower case."""
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


@dataclass(slots=True, kw_only=True)
class Session:
    """A resumable upload.

    Attributes:
        upload_id: Id in the URL.
        start: The request that started it, whose preconditions hold for the whole upload.
        metadata: Fields of the object.
        content_type: Content type of the bytes.
        data: Bytes that have arrived.
        reply: Reply to the last chunk; a client that lost it may request it again.
    """

    upload_id: str
    start: RestCall
    metadata: dict[str, Any]
    content_type: str
    data: bytearray = field(default_factory=bytearray)
    reply: Reply | None = None

    def add(self, call: RestCall) -> bool:
        """Appends the bytes of one request, and returns whether they were the last ones.

        Raises:
            RestError: The bytes do not continue those that have arrived, or differ in number from the header.
        """
        if call.is_aborted:
            self.data += call.body[: len(call.body) // CHUNK_BYTES * CHUNK_BYTES]
            return False
        text = call.headers.get("content-range")
        if text is None:
            self.data[:] = call.body
            return True
        match = _CONTENT_RANGE.fullmatch(text)
        if match is None:
            raise RestError(400, f"Failed to parse Content-Range header: {text}.", "badRequest")
        if match["first"] is not None:
            self._append(call.body, int(match["first"]), int(match["last"]), is_last=match["total"] != "*")
        return match["total"] == str(len(self.data))

    def _append(self, body: bytes, first: int, last: int, *, is_last: bool) -> None:
        if first > len(self.data) or last - first + 1 != len(body):
            raise RestError(
                400, "Invalid request.  Content-Range does not match the bytes received.", "badRequest"
            )
        if not is_last and len(body) % CHUNK_BYTES:
            message = (
                f"Invalid request.  There were {len(body)} byte(s) in the request body.  The number of bytes "
                f"uploaded is required to be equal or greater than {CHUNK_BYTES}, except for the final request "
                "(it's recommended to be the exact multiple)."
            )
            raise RestError(400, message, "badRequest")
        self.data[first:] = body

    def incomplete(self) -> Reply:
        """Returns the reply with the range that has arrived."""
        arrived = {"Range": f"bytes=0-{len(self.data) - 1}"} if self.data else {}
        return Reply(http_status=308, chunks=(), headers=arrived)


class Sessions:
    """The resumable uploads of one service."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    def clear(self) -> None:
        """Removes all sessions."""
        self._sessions.clear()

    def begin(self, call: RestCall, path: str) -> Reply:
        """Starts a session; the reply has the address for its bytes."""
        session = Session(
            upload_id=uuid.uuid4().hex,
            start=call,
            metadata=call.fields(),
            content_type=call.headers.get("x-upload-content-type", BINARY_TYPE),
        )
        self._sessions[session.upload_id] = session
        location = f"{call.base_url}{path}?uploadType=resumable&upload_id={session.upload_id}"
        return Reply(chunks=(), headers={"Location": location, "X-GUploader-UploadID": session.upload_id})

    def of(self, call: RestCall) -> Session:
        """Returns the session of a request.

        Raises:
            RestError: There is none.
        """
        session = self.get(call)
        if session is None:
            raise RestError(404, "No such upload session.", "notFound")
        return session

    def get(self, call: RestCall) -> Session | None:
        """Returns the session of a request, if any."""
        return self._sessions.get(call.query.get("upload_id", ""))

    def cancel(self, call: RestCall) -> Reply:
        """Removes a session; Google answers 499."""
        del self._sessions[self.of(call).upload_id]
        return Reply(http_status=499, chunks=())
