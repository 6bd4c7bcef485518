"""The pattern recognisers of presidio-analyzer, called directly: `AnalyzerEngine` would load a language model."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.safety.privacy import PatternKind, PatternsDetector, kinds_of

#: Time for one pattern and text, in seconds.
TIMEOUT_SECONDS = 0.5
#: Smallest score of a finding: numbers that nothing but their length speaks for have lower ones.
MIN_SCORE = 0.4
#: Flags with which presidio-analyzer compiles its patterns.
_FLAGS = re.DOTALL | re.MULTILINE | re.IGNORECASE

# What a text must have to have a value of a kind. Most texts have none of it, and a search for it takes 1 µs.
_AT = re.compile("@")
_ADDRESS = re.compile(
    r"\d\.\d|[0-9A-Fa-f:]:[0-9A-Fa-f:]|[0-9A-Fa-f]{2}-[0-9A-Fa-f]{2}|[0-9A-Fa-f]{4}\.[0-9A-Fa-f]"
)
_LINK = re.compile(r"\w\.[A-Za-z]")
_LONG_WORD = re.compile(r"[A-Za-z0-9]{25}")
_FOUR_DIGITS = re.compile(r"\d{4}")
_SIX_DIGITS = re.compile(r"(?:\d[^\d\n]{0,3}){5}\d")

#: Name of the recogniser of a kind, and what a text must have.
_RECOGNISERS: dict[PatternKind, tuple[str, re.Pattern[str]]] = {
    "EMAIL": ("EmailRecognizer", _AT),
    "PHONE": ("PhoneRecognizer", _SIX_DIGITS),
    "CREDIT_CARD": ("CreditCardRecognizer", _SIX_DIGITS),
    "IBAN": ("IbanRecognizer", _SIX_DIGITS),
    "IP_ADDRESS": ("IpRecognizer", _ADDRESS),
    "MAC_ADDRESS": ("MacAddressRecognizer", _ADDRESS),
    "CRYPTO_WALLET": ("CryptoRecognizer", _LONG_WORD),
    "URL": ("UrlRecognizer", _LINK),
    "AU_TFN": ("AuTfnRecognizer", _SIX_DIGITS),
    "CA_SIN": ("CaSinRecognizer", _SIX_DIGITS),
    "DE_SOCIAL_SECURITY": ("DeSocialSecurityRecognizer", _SIX_DIGITS),
    "DE_TAX_ID": ("DeTaxIdRecognizer", _SIX_DIGITS),
    "ES_NIE": ("EsNieRecognizer", _SIX_DIGITS),
    "ES_NIF": ("EsNifRecognizer", _SIX_DIGITS),
    "FI_PERSONAL_ID": ("FiPersonalIdentityCodeRecognizer", _SIX_DIGITS),
    "GB_NHS": ("NhsRecognizer", _SIX_DIGITS),
    "GB_NINO": ("UkNinoRecognizer", _SIX_DIGITS),
    "IN_AADHAAR": ("InAadhaarRecognizer", _SIX_DIGITS),
    "IN_PAN": ("InPanRecognizer", _FOUR_DIGITS),
    "IT_FISCAL_CODE": ("ItFiscalCodeRecognizer", re.compile(r"[A-Za-z]{6}")),
    "KR_RRN": ("KrRrnRecognizer", _SIX_DIGITS),
    "PL_PESEL": ("PlPeselRecognizer", _SIX_DIGITS),
    "SE_PERSONNUMMER": ("SePersonnummerRecognizer", _SIX_DIGITS),
    "SG_NRIC": ("SgFinRecognizer", _SIX_DIGITS),
    "TH_TNIN": ("ThTninRecognizer", _SIX_DIGITS),
    "US_ITIN": ("UsItinRecognizer", _SIX_DIGITS),
    "US_SSN": ("UsSsnRecognizer", _SIX_DIGITS),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A value in a text.

    Attributes:
        start: Index of its first character.
        end: Index after its last one.
        kind: Kind of the value.
        score: How sure it is, from 0 to 1.
    """

    start: int
    end: int
    kind: str
    score: float


#: Finds the values in a text; raises `Exception` if it cannot tell.
Find = Callable[[str], Iterator[Finding]]


def pattern_finders(detector: PatternsDetector) -> Iterator[Find]:
    """Yields a function for each kind that a detector finds.

    Raises:
        JobSpecError: presidio-analyzer is not installed.
    """
    try:
        from presidio_analyzer import predefined_recognizers
    except ImportError as error:
        raise JobSpecError(
            f"`safety.privacy.detectors`: a detector of type 'patterns' needs presidio-analyzer: {error}. Install "
            "the extra: `pip install 'airflow-provider-llmbeam[privacy]'`. Nothing was sent or billed."
        ) from None
    logging.getLogger("presidio-analyzer").disabled = True  # its messages quote what was found
    for kind in kinds_of(detector):
        name, gate = _RECOGNISERS[kind]  # type: ignore[index]  # kinds of `patterns` are pattern kinds
        arguments = {"supported_regions": detector.countries} if kind == "PHONE" else {}
        recogniser = getattr(predefined_recognizers, name)(**arguments)
        yield _finder(kind, gate, _Whole(recogniser) if kind in ("PHONE", "IBAN") else _Patterns(kind, recogniser))


def _finder(kind: str, gate: re.Pattern[str], spans: Callable[[str], Iterator[tuple[int, int, float]]]) -> Find:
    may_have = gate.search

    def find(text: str) -> Iterator[Finding]:
        if may_have(text):
            for start, end, score in spans(text):
                if score >= MIN_SCORE:
                    yield Finding(start, end, kind, score)

    return find


class _Whole:
    """A recogniser that does more than its patterns say."""

    def __init__(self, recogniser: Any) -> None:
        self._recogniser = recogniser

    def __call__(self, text: str) -> Iterator[tuple[int, int, float]]:
        for found in self._recogniser.analyze(text, self._recogniser.supported_entities):
            yield found.start, found.end, found.score


class _Patterns:
    """The patterns and check digits of a recogniser.

    Its `analyze` takes a multiple of the time for explanations, and leaves out a pattern that takes too long.
    """

    def __init__(self, kind: str, recogniser: Any) -> None:
        import regex

        self._patterns = [
            (regex.compile(pattern.regex, flags=_FLAGS), pattern.score) for pattern in recogniser.patterns
        ]
        self._invalidate = recogniser.invalidate_result
        # For an e-mail address it asks for a public suffix, of a list that is fetched from the network; and an
        # address of an internal domain has none.
        self._validate = None if kind == "EMAIL" else recogniser.validate_result

    def __call__(self, text: str) -> Iterator[tuple[int, int, float]]:
        for pattern, score in self._patterns:
            for match in pattern.finditer(text, timeout=TIMEOUT_SECONDS):
                value = match.group()
                is_valid = None if self._validate is None else self._validate(value)
                if value and is_valid is not False and not self._invalidate(value):
                    yield match.start(), match.end(), 1.0 if is_valid else score
