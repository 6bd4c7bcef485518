"""Media that the servers of models take: by which address, of which type, and of which size. Pure.

Each model has its own as `media`.

Sources, read in November 2026:
- Gemini Developer API: ai.google.dev/gemini-api/docs/file-input-methods, and the announcement of 2026-01-12
  (blog.google, "Increased file size limits and expanded inputs support in Gemini API"): 100 MB per request with
  inline data, encoded; 50 MB per PDF; https:// addresses; a gs:// address is answered with 400 "Invalid or
  unsupported file uri" (googleapis/python-genai issue 71); …/docs/files: 2 GB per uploaded file.
- Gemini on Vertex AI: docs.cloud.google.com/gemini-enterprise-agent-platform, the pages of the models ("Technical
  specifications"): an image 7 MB inline and 30 MB from Cloud Storage, `text/plain` 7 MB, a PDF 50 MB, a request
  500 MB; gs:// and https:// addresses.
- OpenAI: platform.openai.com/docs/guides/images: PNG, JPEG, WEBP and GIF; 50 MB per request; https:// and `data:`.
- Anthropic: anthropic 2.14 (`types.Base64ImageSourceParam`, `types.Base64PDFSourceParam`, and the same by `url`);
  platform.claude.com/docs/en/build-with-claude/pdf-support: 32 MB per request.
- vLLM: docs.vllm.ai, "Multimodal Inputs": images, audio and video by https:// or `data:`; `file://` is a path of
  the server, and refused unless it was started with `--allowed-local-media-path`.

A megabyte of these pages is read as 2^20 bytes: what is refused here is refused there.
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote

MIB = 2**20
#: `web` is http:// or https://, `local` a path or file://, `elsewhere` another filesystem of Beam.
Place = Literal["data", "web", "local", "gs", "elsewhere"]
#: How the tokens of files are counted, see `media_tokens`.
MediaCounting = Literal["gemini", "openai", "claude", "weights"]

# Neither of `/etc/mime.types` nor of the version of Python, as the type belongs to the fingerprint of a prompt.
_TYPES = mimetypes.MimeTypes()
for _type, _extensions in {
    "image/webp": (".webp",),
    "image/heic": (".heic",),
    "image/heif": (".heif",),
    "image/avif": (".avif",),
    "audio/mp4": (".m4a",),
    "audio/flac": (".flac",),
    "audio/ogg": (".ogg", ".opus"),
    "audio/wav": (".wav",),
    "video/x-matroska": (".mkv",),
    "image/jpeg": (".jfif",),
    "text/markdown": (".md",),
}.items():
    for _extension in _extensions:
        _TYPES.add_type(_type, _extension)

_HTML = re.compile(rb"(\xef\xbb\xbf)?\s*<(!doctype\s+html|html|head|body)\b", re.IGNORECASE)
_BEGINNINGS = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
    "application/pdf": re.compile(rb"%PDF-"),
}
# As Beam reads it; a text with any other beginning is a path (`FileSystems.get_scheme`).
_SCHEME = re.compile(r"([a-zA-Z][-a-zA-Z0-9+.]*)://")
_PLACES: dict[str, Place] = {"http": "web", "https": "web", "file": "local", "gs": "gs"}
_TEMPLATE = re.compile(r"\{[{%#].*[}%#]\}", re.DOTALL)


class MediaError(ValueError):
    """A file that cannot be sent; the message is a sentence without its field."""


class MediaUnavailableError(Exception):
    """The service of a file does not answer, so that other files cannot be read either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaRules:
    """What one server takes.

    Attributes:
        server: Name of the server, for messages.
        by_address: Places of files that the server reads itself, by their address.
        by_address_types: Types that it reads itself; all others are sent as bytes.
        types: MIME types, as patterns.
        types_shown: The same, for messages.
        max_bytes: Largest file that is sent in a request, in bytes, by pattern; the first match counts.
        max_storage_bytes: Largest file on Cloud Storage that the server reads itself, in bytes, by pattern.
        max_request_bytes: Largest request, encoded, in bytes; `None` is no known limit.
        max_upload_bytes: Largest file that can be uploaded before its request, in bytes; `None` if none can.
        needs_type: Whether an address needs a MIME type.
    """

    server: str
    by_address: frozenset[Place]
    by_address_types: tuple[str, ...] = ("*/*",)
    types: tuple[str, ...] = ("*/*",)
    types_shown: str = "any type"
    max_bytes: Mapping[str, int] = field(default_factory=dict)
    max_storage_bytes: Mapping[str, int] = field(default_factory=dict)
    max_request_bytes: int | None = None
    max_upload_bytes: int | None = None
    needs_type: bool = True

    def is_sent_by_address(self, uri: str, mime_type: str | None) -> bool:
        """Returns whether the address is sent, and not the bytes."""
        place = place_of(uri)
        return place in self.by_address and (mime_type is None or _matches(mime_type, self.by_address_types))

    def check_type(self, uri: str, mime_type: str | None) -> None:
        """Raises `MediaError` for a type that the server refuses, or an address that it cannot read."""
        if not uri.strip():
            raise MediaError("the address is empty. Expected the address of a file in every row.")
        if mime_type is None:
            if self.needs_type or not self.is_sent_by_address(uri, None):
                raise MediaError(
                    f"no MIME type follows from name or first bytes of {shortened(uri)!r}. Set `mime_type`, e.g. "
                    "'image/png'."
                )
            return
        if not _matches(mime_type, self.types):
            raise MediaError(
                f"{self.server} does not take {mime_type} ({shortened(uri)!r}). Expected {self.types_shown}."
            )
        if place_of(uri) == "web" and not self.is_sent_by_address(uri, mime_type):
            raise MediaError(
                f"{self.server} reads no {mime_type} from the web ({shortened(uri)!r}). Expected a file that is "
                "sent with the request: a local path, gs:// or data:."
            )

    def check_size(self, uri: str, mime_type: str | None, size_bytes: int) -> None:
        """Raises `MediaError` for a file that is larger than the server takes."""
        by_address = self.is_sent_by_address(uri, mime_type)
        limits = self.max_storage_bytes if by_address else self.max_bytes
        limit = next(
            (most for pattern, most in limits.items() if mime_type and _matches(mime_type, (pattern,))), None
        )
        if not size_bytes:
            raise MediaError(f"{shortened(uri)!r} is empty. Expected a file of at least 1 byte.")
        way = "by its address" if by_address else "within a request"
        if limit is None and not by_address:
            limit, way = self.max_upload_bytes, "by upload"
        if limit is not None and size_bytes > limit:
            raise MediaError(
                f"{shortened(uri)!r} has {size_bytes / MIB:,.1f} MB, and {self.server} takes {mime_type} of at "
                f"most {limit // MIB} MB {way}."
            )

    def uploaded(self, sizes: Sequence[int], text_characters: int) -> frozenset[int]:
        """Returns which files of a prompt are uploaded: the largest, until the others fit into the request.

        Args:
            sizes: Size of each file whose bytes are sent, in bytes; 0 for one that is sent by its address.
            text_characters: Size of the text.
        """
        if self.max_upload_bytes is None or self.max_request_bytes is None:
            return frozenset()
        encoded = [_encoded_bytes(size) for size in sizes]
        found: set[int] = set()
        for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
            if sum(encoded) + text_characters <= self.max_request_bytes:
                break
            encoded[index] = 0
            found.add(index)
        return frozenset(found)

    def check_request(self, encoded_bytes: int) -> None:
        """Raises `MediaError` for a request that is larger than the server takes."""
        if self.max_request_bytes is not None and encoded_bytes > self.max_request_bytes:
            raise MediaError(
                f"text and files make a request of {encoded_bytes / MIB:,.1f} MB, and {self.server} takes at most "
                f"{self.max_request_bytes / MIB:,.1f} MB. Expected fewer or smaller files."
            )


def chat_media(max_request_bytes: int | None = None) -> MediaRules:
    """Returns what a server with the OpenAI API takes."""
    return MediaRules(
        server="an OpenAI-compatible server",
        by_address=frozenset({"web"}),
        types=("image/*", "audio/*", "video/*"),
        types_shown="an image, audio or video",
        max_request_bytes=max_request_bytes,
        needs_type=False,
    )


def place_of(uri: str) -> Place:
    """Returns where the file of an address is."""
    if uri[:5].lower() == "data:":
        return "data"
    found = _SCHEME.match(uri)
    return "local" if found is None else _PLACES.get(found[1].lower(), "elsewhere")


def local_path(uri: str) -> str:
    """Returns the path of a local address; an empty one if `file://` has none."""
    return unquote(_path_of(uri)) if uri[:7].lower() == "file://" else uri


def is_below(uri: str, root: str) -> bool:
    """Returns whether an address, which is no local one, is below a directory, wherever its server looks it up."""
    root = root if root.endswith("/") else f"{root}/"
    # Parsers take a backslash for a slash, and leave out tabs and ends of lines (WHATWG URL Standard).
    rest = re.sub(r"[\t\r\n]", "", unquote(uri[len(root) :]))
    return uri.startswith(root) and ".." not in re.split(r"[/\\?#;]", rest)


def guess_type(uri: str) -> str | None:
    """Returns the MIME type of an address by its extension; `None` if it has none that is known."""
    path = _path_of(uri) if place_of(uri) == "web" else uri
    return _TYPES.guess_type(path.replace(":", ""))[0]  # `guess_type` reads "a:b" as a URL


def type_by_content(uri: str, named: str | None, head: bytes) -> str | None:
    """Returns the MIME type of a file by its first bytes, else the one that it was given or that its name says.

    Raises:
        MediaError: It is a page of HTML under another type, such as the page of an error.
    """
    if named is not None and named.startswith("text/"):
        return named
    if _HTML.match(head):
        raise MediaError(f"{shortened(uri)!r} is a page of HTML by its first bytes, perhaps that of an error.")
    return next((kind for kind, begin in _BEGINNINGS.items() if begin.match(head)), named)


def shortened(uri: str) -> str:
    """Returns an address for a message: without bytes or a signature, of at most 60 characters."""
    if place_of(uri) == "data":
        return f"{uri[:30]}…"
    if place_of(uri) == "web":
        uri = uri.partition("?")[0]
    if place_of(uri) == "local":
        uri = local_path(uri)
    return uri if len(uri) <= 60 else f"{uri[:30]}…{uri[-29:]}"


def literal_ends(template: str) -> tuple[str, str]:
    """Returns what an address begins with and ends in for every row: the texts around its expressions."""
    if (found := _TEMPLATE.search(template)) is None:
        return template, template
    return template[: found.start()], template[found.end() :]


def template_fault(template: str, mime_type: str | None, rules: MediaRules, *, reads_local: bool) -> str | None:
    """Returns what is wrong with an address for every row, as the second half of a sentence; `None` if nothing is.

    Args:
        template: Template of the address.
        mime_type: The given MIME type.
        rules: What the server takes.
        reads_local: Whether the workers can read files of this machine.
    """
    begin, end = literal_ends(template)
    is_literal = begin == template
    has_place = is_literal or "/" in begin or begin.lower().startswith("data:")
    if has_place and place_of(begin) == "local" and not reads_local:
        return "is a file of this machine, which the workers of Dataflow (`runner`) cannot read: use gs://…"
    known = mime_type or (guess_type(f"x{end}") if "." in end and not end.endswith("}") else None)
    if known is not None and place_of(begin) != "data" and not _matches(known, rules.types):
        return f"is of type {known}, and {rules.server} takes {rules.types_shown}"
    return None


def _path_of(uri: str) -> str:
    """Returns the path of an address with a host; `urlsplit` raises an error for some hosts."""
    _, slash, path = re.split(r"[?#]", uri.partition("://")[2])[0].partition("/")
    return f"{slash}{path}"


def _encoded_bytes(size_bytes: int) -> int:
    """Returns the size of a file as a `data:` URI of any type."""
    return (size_bytes + 2) // 3 * 4 + 100


def _matches(mime_type: str, patterns: tuple[str, ...]) -> bool:
    family = f"{mime_type.partition('/')[0]}/*"
    return any(pattern in ("*/*", mime_type, family) for pattern in patterns)
