"""`data:` URIs (RFC 2397)."""

from __future__ import annotations

import base64
import binascii
from urllib.parse import unquote_to_bytes

from airflow_provider_llmbeam.spec.model.media import MediaError, shortened


def data_uri(content: bytes, mime_type: str) -> str:
    """Returns bytes as a `data:` URI."""
    return f"data:{mime_type};base64,{base64.b64encode(content).decode('ascii')}"


def inline_parts(uri: str) -> tuple[str, str]:
    """Returns the MIME type and the base64 text of a `data:` URI of `data_uri`."""
    head, _, text = uri.partition(",")
    return head.removeprefix("data:").removesuffix(";base64"), text


def parse_data_uri(uri: str) -> tuple[bytes, str | None]:
    """Returns the bytes and the MIME type of any `data:` URI (RFC 2397); `None` if it has no type.

    Raises:
        MediaError: It is none.
    """
    mime_type, is_base64, text = data_parts(uri)
    if not is_base64:
        return unquote_to_bytes(text), mime_type
    try:
        return base64.b64decode("".join(text.split()), validate=True), mime_type
    except (binascii.Error, ValueError) as error:
        raise MediaError(
            f"{shortened(uri)!r} is not base64 ({error}). Expected data:image/png;base64,… with all bytes."
        ) from None


def data_parts(uri: str) -> tuple[str | None, bool, str]:
    """Returns the MIME type of a `data:` URI, whether its text is base64, and the text.

    Raises:
        MediaError: It is none.
    """
    head, comma, text = uri[5:].partition(",")
    if not comma:
        raise MediaError(
            f"{shortened(uri)!r} has no comma. Expected data:image/png;base64,… with the bytes after it."
        )
    mime_type, *parameters = (part.strip().lower() for part in head.split(";"))
    return mime_type or None, "base64" in parameters, text
