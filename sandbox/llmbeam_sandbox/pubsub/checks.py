"""What Pub/Sub refuses."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from llmbeam_sandbox.core.rest import RestError

#: Limits of one request: cloud.google.com/pubsub/quotas, "Resource limits".
MAX_MESSAGES, MAX_BYTES = 1000, 10_000_000
MAX_ORDERING_KEY_BYTES = 1024


def check_messages(messages: list[dict[str, Any]], size: int) -> None:
    """Checks the messages of one request.

    Args:
        messages: The messages.
        size: Size of the request, in bytes.

    Raises:
        RestError: They are too many or too large, or one is invalid.
    """
    if not messages or len(messages) > MAX_MESSAGES:
        raise RestError(400, f"The value for message_count is {len(messages)}; it must be 1 to {MAX_MESSAGES}.")
    if size > MAX_BYTES:
        raise RestError(400, f"Request payload size exceeds the limit: {MAX_BYTES} bytes.")
    if len({str(message.get("orderingKey", "")) for message in messages}) > 1:
        raise RestError(400, "All messages of a publish request must have the same ordering key.")
    for message in messages:
        try:
            data = base64.b64decode(str(message.get("data") or ""), validate=True)
        except binascii.Error as error:
            raise RestError(
                400, "Invalid value at 'messages[0].data' (TYPE_BYTES), Base64 decoding failed."
            ) from error
        if not data and not message.get("attributes"):
            raise RestError(400, "One or more messages in the publish request is empty.")
        if len(str(message.get("orderingKey", "")).encode()) > MAX_ORDERING_KEY_BYTES:
            raise RestError(400, f"The ordering key is longer than {MAX_ORDERING_KEY_BYTES} bytes.")
