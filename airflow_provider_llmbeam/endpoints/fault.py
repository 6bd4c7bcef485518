"""Why an endpoint did not come up: the service's words, told apart."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

#: `leftover`: what an earlier try left and cannot be used. `late`: it took longer than allowed.
FaultKind = Literal["stock_out", "quota", "no_gpu", "denied", "refused", "leftover", "late", "failed"]

#: What another location may have.
FALLS_THROUGH: frozenset[FaultKind] = frozenset({"stock_out", "quota", "no_gpu"})

#: In this order: a region without resources is out of stock, one that does not support a machine never has it.
_WORDS: tuple[tuple[FaultKind, str], ...] = (
    ("quota", r"quota"),
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
_FAILED_PRECONDITION, _UNAUTHENTICATED = 9, 16
_BY_HTTP = {400: 3, 401: 16, 403: 7, 404: 5, 409: 10, 429: 8}


@dataclass(frozen=True, slots=True)
class Fault:
    """Why it did not come up.

    Attributes:
        kind: What follows from it.
        words: Of the service, as a sentence.
    """

    kind: FaultKind
    words: str

    @property
    def falls_through(self) -> bool:
        """Whether another location may do better."""
        return self.kind in FALLS_THROUGH


def fault_of(code: int, words: str) -> Fault:
    """Tells what a refusal means.

    Args:
        code: Of `google.rpc.Code`, or an HTTP status.
        words: Of the service.
    """
    code = _BY_HTTP.get(code, code)
    text = " ".join(words.split())[:600] or f"code {code}, without a word of why"
    text = text if text.endswith((".", "!", "?")) else f"{text}."
    if code in (_PERMISSION_DENIED, _UNAUTHENTICATED):
        # Cloud Run says so of a GPU quota, too.
        return Fault("quota" if re.search(r"quota", text, re.IGNORECASE) else "denied", text)
    for kind, pattern in _WORDS:
        if re.search(pattern, text, re.IGNORECASE):
            return Fault(kind, text)
    if code == _RESOURCE_EXHAUSTED:
        return Fault("stock_out", text)
    return Fault("refused" if code in (_INVALID_ARGUMENT, _NOT_FOUND) else "failed", text)
