"""Images, audio, video and documents in requests to models, and what the services refuse of them."""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from llmbeam_sandbox.core.records import ReceivedMedia

_TILE_TOKENS = 258
"""Tokens of a small image, of a tile of a larger one, and of a page; here also of audio, video and text.

Source: ai.google.dev/gemini-api/docs/image-understanding and …/document-processing.
"""
FILES_ADDRESS = "https://generativelanguage.googleapis.com/v1beta/"
"""Address before the name of a file of the Files API."""
_MIB = 2**20
_IMAGES = frozenset({"png", "jpeg", "webp", "heic", "heif", "bmp", "avif"})
_WEB = ("http://", "https://")
_VERTEX_LIMIT = 7 * _MIB
_PDF_LIMIT = 50 * _MIB
_PDF_HEADER = 1024
"""Bytes in which readers look for the header of a PDF, which may follow others."""
_CLAUDE_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_CHAT_KINDS = ("image_url", "audio_url", "video_url")


class MediaRefusedError(Exception):
    """The service refuses a file.

    Args:
        message: Its message.
        http_status: HTTP status of its answer.
    """

    def __init__(self, message: str, http_status: int = 400) -> None:
        super().__init__(message)
        self.http_status = http_status


@dataclass(frozen=True, slots=True)
class UploadedMedia:
    """A file of the Files API.

    Attributes:
        content: Its bytes.
        is_active: Whether it has been processed.
    """

    content: bytes
    is_active: bool


FindUpload = Callable[[str], UploadedMedia | None]
"""Returns the file of a name; None if there is none."""


def is_gemini_media(part: Mapping[str, Any]) -> bool:
    """Returns whether a part of a Gemini request is a file."""
    return any(name in part for name in ("inlineData", "inline_data", "fileData", "file_data"))


def gemini_media(
    part: Mapping[str, Any], *, is_vertex: bool, find_upload: FindUpload | None = None
) -> ReceivedMedia | None:
    """Returns the file of a part; None for a part of another kind.

    Args:
        part: The part.
        is_vertex: Whether Vertex AI receives it, which has no Files API.
        find_upload: Finds a file of the Files API.

    Raises:
        MediaRefusedError: Its address, type, encoding or size is refused.
    """
    inline = part.get("inlineData", part.get("inline_data"))
    address = part.get("fileData", part.get("file_data"))
    if inline is None and address is None:
        return None
    fields: Mapping[str, Any] = inline if inline is not None else address
    mime_type = str(fields.get("mimeType", fields.get("mime_type")) or "")
    _check_gemini_type(mime_type, is_vertex=is_vertex)
    if inline is None:
        uri = str(fields.get("fileUri", fields.get("file_uri")) or "")
        if find_upload is not None and not is_vertex and uri.startswith(FILES_ADDRESS):
            return _uploaded(uri.removeprefix(FILES_ADDRESS), mime_type, find_upload)
        if not uri.startswith((*_WEB, "gs://") if is_vertex else _WEB):
            raise MediaRefusedError(f"Invalid or unsupported file uri: {uri[:200]}")
        return ReceivedMedia(mime_type=mime_type, uri=uri)
    content = _decoded(str(inline.get("data") or ""))
    family = mime_type.partition("/")[0]
    limit = _PDF_LIMIT if mime_type == "application/pdf" else None
    if is_vertex and (family == "image" or mime_type == "text/plain"):
        limit = _VERTEX_LIMIT
    if limit is not None and len(content) > limit:
        raise MediaRefusedError(
            f"Unable to submit request because it has a file of {len(content)} bytes, and the limit is {limit}."
        )
    return _counted(mime_type, content)


def chat_media(part: Mapping[str, Any]) -> ReceivedMedia | None:
    """Returns the file of a part of a chat message; None for a text.

    Raises:
        MediaRefusedError: Its kind, address, type or encoding is refused.
    """
    kind = part.get("type", "text")
    if kind == "text":
        return None
    if kind in _CHAT_KINDS:
        return _of_address(kind, str(part[kind]["url"]))
    if kind == "input_audio":
        if part[kind].get("format") not in ("wav", "mp3"):
            raise MediaRefusedError(
                "Invalid value of 'input_audio.format'. Supported values are: 'wav' and 'mp3'."
            )
        return _received(f"audio/{part[kind]['format']}", _decoded(str(part[kind]["data"])))
    if kind == "file":
        return _of_data_url("application/pdf", str(part[kind]["file_data"]))
    raise MediaRefusedError(f"Invalid value: {kind!r}. Supported values are: 'text', 'image_url', 'input_audio'.")


def anthropic_media(block: Mapping[str, Any]) -> ReceivedMedia:
    """Returns the file of a block of a message to Claude.

    Raises:
        MediaRefusedError: Its kind, type or encoding is refused.
    """
    kind, source = block.get("type"), block.get("source") or {}
    if kind not in ("image", "document"):
        raise MediaRefusedError(f"messages: Input tag {kind!r} is not 'text', 'image' or 'document'")
    if source.get("type") == "url":
        return ReceivedMedia(mime_type=f"{kind}/*", uri=str(source["url"]))
    mime_type = str(source.get("media_type"))
    if mime_type not in (_CLAUDE_IMAGES if kind == "image" else ("application/pdf",)):
        raise MediaRefusedError(f"{kind}.source.base64.media_type: Input {mime_type!r} is not supported")
    return _received(mime_type, _decoded(str(source.get("data"))))


def _uploaded(name: str, mime_type: str, find_upload: FindUpload) -> ReceivedMedia:
    own = name.removeprefix("files/")
    if (file := find_upload(name)) is None:
        raise MediaRefusedError(f"You do not have permission to access the File {own} or it may not exist.", 403)
    if not file.is_active:
        raise MediaRefusedError(f"The File {own} is not in an ACTIVE state and usage is not allowed.")
    return _counted(mime_type, file.content)


def _counted(mime_type: str, content: bytes) -> ReceivedMedia:
    if content and mime_type == "application/pdf" and b"%PDF-" not in content[:_PDF_HEADER]:
        # Quoted in github.com/google-gemini/gemini-cli/issues/13808, of a file that is damaged.
        raise MediaRefusedError("The document has no pages.")
    return replace(_received(mime_type, content), tokens=_gemini_tokens(mime_type, content))


def _gemini_tokens(mime_type: str, content: bytes) -> int:
    """Counts the tokens of a PNG, and of a PDF whose pages are not compressed."""
    tiles = 1
    if mime_type == "application/pdf":
        tiles = max(1, content.count(b"/Type /Page "))
    elif content[12:16] == b"IHDR":
        width, height = (int.from_bytes(content[place : place + 4], "big") for place in (16, 20))
        side = max(1, min(width, height) * 2 // 3)
        tiles = -(-width // side) * -(-height // side) if max(width, height) > 384 else 1
    return _TILE_TOKENS * tiles


def _of_address(kind: str, url: str) -> ReceivedMedia:
    family = kind.removesuffix("_url")
    if url.startswith(_WEB):
        return ReceivedMedia(mime_type=f"{family}/*", uri=url)
    return _of_data_url(f"{family}/", url)


def _of_data_url(mime_type: str, url: str) -> ReceivedMedia:
    head, _, data = url.partition(",")
    if not (head.startswith(f"data:{mime_type}") and head.endswith(";base64")):
        raise MediaRefusedError(
            f"Invalid file. Expected a base64-encoded data URL with a MIME type of {mime_type.rstrip('/')} (e.g. "
            f"'data:image/png;base64,aW1nIGJ5dGVzIGhlcmU='), but got a value without it: {url[:50]}"
        )
    return _received(head.removeprefix("data:").removesuffix(";base64"), _decoded(data))


def tokens_by_modality(input_tokens: int, media: Iterable[ReceivedMedia]) -> list[dict[str, Any]]:
    """Returns `promptTokensDetails` of a reply: the tokens of each kind of file, and of the text."""
    found = Counter[str]()
    for file in media:
        family = file.mime_type.partition("/")[0].upper()
        found["DOCUMENT" if family == "APPLICATION" else family] += file.tokens
    found["TEXT"] += input_tokens - found.total()
    return [{"modality": name, "tokenCount": tokens} for name, tokens in found.items()]


def _check_gemini_type(mime_type: str, *, is_vertex: bool) -> None:
    family, _, kind = mime_type.partition("/")
    is_image = family == "image" and kind in _IMAGES
    if is_image or family in ("audio", "video", "text") or mime_type == "application/pdf":
        return
    if is_vertex:
        raise MediaRefusedError(
            f"Unable to submit request because it has a mimeType parameter with value {mime_type}, which is not "
            "supported. Update the mimeType and try again."
        )
    raise MediaRefusedError(f"Unsupported MIME type: {mime_type}")


def _received(mime_type: str, content: bytes) -> ReceivedMedia:
    if not content:
        raise MediaRefusedError("Unable to process input: the file is empty.")
    return ReceivedMedia(mime_type=mime_type, sha256=sha256(content).hexdigest(), size_bytes=len(content))


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise MediaRefusedError(f'Base64 decoding failed for "{data[:50]}"') from None
