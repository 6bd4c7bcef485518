"""Why an endpoint could not be provisioned: classifies refusals of the service by their messages."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from airflow_provider_llmbeam.exceptions import CloudError

#: `leftover`: resources of an earlier try that cannot be used. `late`: the time limit passed.
FaultKind = Literal["stock_out", "quota", "no_gpu", "denied", "refused", "leftover", "late", "failed"]

#: Faults of one location; another location may have the GPU.
LOCATION_FAULTS: frozenset[FaultKind] = frozenset({"stock_out", "quota", "no_gpu"})

#: The first match counts: a region without resources is out of stock, one that does not support a machine never
#: has it.
_PATTERNS: tuple[tuple[FaultKind, str], ...] = (
    ("quota", r"quota"),
    # Cloud Run ends the operation of a service that may not read a secret with INTERNAL:
    # github.com/sourcegraph/sourcegraph-public-snapshot/pull/59045
    ("denied", r"permission denied|must have permission|(do|does) not have permission"),
    (
        "stock_out",
        r"stock.?out|out of (capacity|stock)|(not enough|insufficient|no) .{0,40}(resources|capacity)|"
        r"does not have enough resources|resources? .{0,20}exhausted|temporarily unavailable|"
        r"(capacity|resources).{0,40}(unavailable|not available)|try a different (zone|region|location)",
    ),
    (
        "no_gpu",
        r"(not (supported|available|offered|allowed)|unsupported|unavailable|does not (support|have|offer))"
        r".{0,80}\b(region|location|zone)\b|"
        r"\b(region|location|zone)\b.{0,80}(not support|unsupported|does not (have|offer)|no (gpu|accelerator))",
    ),
)

_INVALID_ARGUMENT, _NOT_FOUND, _PERMISSION_DENIED, _RESOURCE_EXHAUSTED = 3, 5, 7, 8
_UNAUTHENTICATED = 16
_CODE_BY_HTTP_STATUS = {400: 3, 401: 16, 403: 7, 404: 5, 409: 10, 429: 8}
_MAX_CHARACTERS = 600


@dataclass(frozen=True, slots=True)
class Fault:
    """Reason why an endpoint could not be provisioned.

    Attributes:
        kind: Class of the fault.
        message: Message of the service, as a sentence.
    """

    kind: FaultKind
    message: str

    @property
    def is_location_specific(self) -> bool:
        """Whether another location may succeed."""
        return self.kind in LOCATION_FAULTS


def fault_of(code: int, message: str) -> Fault:
    """Classifies a refusal.

    Args:
        code: `google.rpc.Code`, or an HTTP status.
        message: Message of the service.
    """
    code = _CODE_BY_HTTP_STATUS.get(code, code)
    text = " ".join(message.split())[:_MAX_CHARACTERS] or f"code {code}, without a message"
    text = text if text.endswith((".", "!", "?")) else f"{text}."
    if code in (_PERMISSION_DENIED, _UNAUTHENTICATED):
        # Cloud Run also returns PERMISSION_DENIED for a missing GPU quota.
        return Fault("quota" if re.search(r"quota", text, re.IGNORECASE) else "denied", text)
    for kind, pattern in _PATTERNS:
        if re.search(pattern, text, re.IGNORECASE):
            return Fault(kind, text)
    if code == _RESOURCE_EXHAUSTED:
        return Fault("stock_out", text)
    return Fault("refused" if code in (_INVALID_ARGUMENT, _NOT_FOUND) else "failed", text)


def operation_or_fault(create: Callable[[], str]) -> str | Fault | None:
    """Sends a create request.

    Args:
        create: Sends the request and returns the name of the operation.

    Returns:
        The operation; `None` if the resource exists already; or the fault if the refusal is final.

    Raises:
        CloudError: A later request may succeed.
    """
    from google.api_core import exceptions as api

    try:
        return create()
    except CloudError as error:
        cause = error.__cause__
        if isinstance(cause, api.Conflict):
            return None
        if not isinstance(cause, api.ClientError) or _is_rate_limit(cause):
            raise
        fault = fault_of(int(cause.code or 400), str(cause.message))
        return fault if fault.is_location_specific else Fault(fault.kind, str(error))


def is_refusal(error: BaseException) -> bool:
    """Whether the service, or the lack of credentials, refused a request, so that it started nothing."""
    from google.api_core import exceptions as api
    from google.auth import exceptions as auth

    return isinstance(error.__cause__, (api.ClientError, auth.GoogleAuthError))


def _is_rate_limit(error: Exception) -> bool:
    """Whether the quota of requests was exceeded, not that of GPUs."""
    message = str(error).lower()
    return getattr(error, "code", None) == 429 and ("per minute" in message or "requests" in message)
