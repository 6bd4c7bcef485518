"""How much a file holds, from its first bytes: pixels of an image, pages of a document, seconds of a sound.

Only fields at fixed places are read, and nothing is decoded: a wrong answer is a wrong estimate of tokens.
"""

from __future__ import annotations

import io
import re
import struct
import wave
from collections.abc import Callable

from airflow_provider_llmbeam.spec.model.media_tokens import MediaExtent

#: Number of bytes at the beginning of a file that are read: those of a JPEG with a preview and a colour profile.
HEAD_BYTES = 256 * 2**10
#: Object of a page. Many documents since PDF 1.5 have theirs in compressed streams, which are not read.
_PAGE = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
#: Markers of JPEG that begin a frame (ITU-T T.81, table B.1), with its height and width.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def extent_of(mime_type: str | None, size_bytes: int, head: Callable[[], bytes]) -> MediaExtent:
    """Returns how much a file holds.

    Args:
        mime_type: Its MIME type.
        size_bytes: Its size, in bytes.
        head: Returns its first `HEAD_BYTES`, or nothing; called for the types of which something is read.
    """
    kind = (mime_type or "").partition("/")[0]
    if kind == "image":
        return MediaExtent(size_bytes=size_bytes, pixels=image_pixels(head()))
    if mime_type == "application/pdf":
        begin = head()
        pages = len(_PAGE.findall(begin)) * size_bytes / len(begin) if begin else 0.0
        return MediaExtent(size_bytes=size_bytes, pages=round(pages) or None)
    if mime_type in ("audio/wav", "audio/x-wav"):
        return MediaExtent(size_bytes=size_bytes, seconds=_seconds(head()))
    return MediaExtent(size_bytes=size_bytes)


def image_pixels(head: bytes) -> tuple[int, int] | None:
    """Returns width and height of a PNG, JPEG, WebP, GIF or BMP; `None` for another or a broken one."""
    try:
        width, height = _pixels(head)
    except (struct.error, IndexError):
        return None
    return (width, height) if width > 0 and height > 0 else None


def _pixels(head: bytes) -> tuple[int, int]:
    if head.startswith(b"\x89PNG\r\n\x1a\n") and head[12:16] == b"IHDR":
        return struct.unpack_from(">II", head, 16)
    if head.startswith((b"GIF87a", b"GIF89a")):
        return struct.unpack_from("<HH", head, 6)
    if head.startswith(b"BM"):
        width, height = struct.unpack_from("<ii", head, 18)
        return width, abs(height)  # negative for rows from top to bottom
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return _webp_pixels(head)
    return _jpeg_pixels(head) if head.startswith(b"\xff\xd8") else (0, 0)


def _webp_pixels(head: bytes) -> tuple[int, int]:
    """Returns width and height of a WebP (RFC 9649)."""
    match head[12:16]:
        case b"VP8X":  # 24 bits each
            return 1 + int.from_bytes(head[24:27], "little"), 1 + int.from_bytes(head[27:30], "little")
        case b"VP8L":  # 14 bits each
            (bits,) = struct.unpack_from("<I", head, 21)
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", head, 26)
            return width & 0x3FFF, height & 0x3FFF
    return 0, 0


def _jpeg_pixels(head: bytes) -> tuple[int, int]:
    place = 2
    while head[place] == 0xFF:
        marker = head[place + 1]
        if marker == 0xFF:  # a fill byte
            place += 1
            continue
        if marker in _FRAMES:
            height, width = struct.unpack_from(">HH", head, place + 5)
            return width, height
        (length,) = struct.unpack_from(">H", head, place + 2)
        place += 2 + length
    return 0, 0


def _seconds(head: bytes) -> float | None:
    try:
        with wave.open(io.BytesIO(head)) as sound:
            return float(sound.getnframes() / sound.getframerate())
    except (wave.Error, EOFError, ArithmeticError):  # also of other codecs, e.g. A-law
        return None
