"""What the doctor found: for each check whether it holds, and the command that fixes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from airflow_provider_llmbeam.redaction import redact

Verdict = Literal["holds", "fault", "unknown"]
_SIGNS: dict[Verdict, str] = {"holds": "ok", "fault": "FAULT", "unknown": "?"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check.

    Attributes:
        subject: What was checked.
        verdict: `holds`, `fault`, or `unknown`, if it cannot be seen from here.
        sentence: What was found.
        remedy: Command that fixes it; empty if it holds.
    """

    subject: str
    verdict: Verdict
    sentence: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings.

    Attributes:
        findings: The findings, in the order of the checks.
    """

    findings: Sequence[Finding]

    @property
    def has_fault(self) -> bool:
        """Whether something does not hold."""
        return any(each.verdict == "fault" for each in self.findings)

    def plain(self) -> dict[str, Any]:
        """Returns the findings as plain JSON."""
        return {"findings": [{**asdict(each), "sentence": redact(each.sentence)} for each in self.findings]}

    def __str__(self) -> str:
        lines = []
        for each in self.findings:
            lines.append(f"{_SIGNS[each.verdict]:<6} {each.subject}: {redact(each.sentence)}")
            if each.remedy:
                lines.append(f"       → {each.remedy}")
        count = Counter(each.verdict for each in self.findings)
        return "\n".join(
            [
                *lines,
                "",
                f"{count['holds']} hold, {count['fault']} do not, {count['unknown']} cannot be seen from here.",
            ]
        )
