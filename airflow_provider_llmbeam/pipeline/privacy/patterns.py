"""The pattern recognisers of presidio-analyzer, called directly: `AnalyzerEngine` would load a language model."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from airflow_provider_llmbeam.exceptions import require_extra
from airflow_provider_llmbeam.pipeline.privacy.finding import Finding
from airflow_provider_llmbeam.spec.safety.privacy import PatternsDetector, kinds_of

#: Time for one pattern and text, in seconds.
TIMEOUT_SECONDS = 0.5
#: Smallest score of a finding: numbers that nothing but their length speaks for have lower ones.
MIN_SCORE = 0.4
#: Flags with which presidio-analyzer compiles its patterns.
_FLAGS = re.DOTALL | re.MULTILINE | re.IGNORECASE

#: Fewest digits of a phone number: shorter ones are those of one town, and other numbers are as short.
_PHONE_DIGITS = 7
#: Fewest digits of one that is written without a blank or another sign, and does not begin with 0.
_BARE_DIGITS = 9
#: Characters around a number that decide whether it is a phone number.
_CONTEXT = 12

_DIGITS = re.compile(r"\d")
#: A number with its blanks and signs, or a letter, between the digits.
_RUN = re.compile(r"\d(?:[^\d\n]{0,3}\d)*")
_NUMBER = re.compile(r"[+(]?\d(?:[\s().\-/]{0,3}\d){6,}")

_DATE = re.compile(r"\d{1,2}([./-])\d{1,2}\1(?:\d{4}|\d{2})|\d{4}([./-])\d{1,2}\2\d{1,2}")
#: A time of a day, mostly with its date: the digits of its fraction are read as a phone number, too.
_TIME = re.compile(
    rf"(?<![\d:])(?:(?:{_DATE.pattern})[T ])?\d\d:\d\d(?::\d\d(?:[.,]\d{{1,9}})?)?(?:[+-]\d\d:\d\d)?(?![\d:])"
)
_AMERICAN = re.compile(r"\(?\d{3}\)?[-. ]{1,2}\d{3}[-. ]\d{4}")
#: Cards that the recogniser leaves out: of 12 and of 19 digits, and those of Mastercard and JCB that begin with 2.
#: Check digits decide.
_MORE_CARDS = r"\b(?:[3-6]\d|2[1-7])(?:[ -]?\d){10,17}\b"


def _always(_: str) -> bool:
    return True


#: Name of the recogniser of a kind; and what a text must have: this many digits in one number, and what the
#: function says. Most texts have neither, and to know that takes 3 µs, where a search for all patterns takes 200.
_RECOGNISERS: dict[str, tuple[str, int, Callable[[str], object]]] = {
    "EMAIL": ("EmailRecognizer", 0, lambda text: "@" in text),
    "PHONE": ("PhoneRecognizer", _PHONE_DIGITS, _NUMBER.search),
    "CREDIT_CARD": ("CreditCardRecognizer", 12, _always),
    "IBAN": ("IbanRecognizer", 8, re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}\d\d").search),
    "IP_ADDRESS": ("IpRecognizer", 0, lambda text: text.count(".") > 2 or text.count(":") > 1),
    "MAC_ADDRESS": (
        "MacAddressRecognizer",
        0,
        lambda text: text.count(":") > 4 or text.count("-") > 4 or text.count(".") > 1,
    ),
    "CRYPTO_WALLET": ("CryptoRecognizer", 1, lambda text: max(map(len, text.split())) > 25),
    "URL": ("UrlRecognizer", 0, lambda text: "." in text),
    "AU_TFN": ("AuTfnRecognizer", 9, _always),
    "CA_SIN": ("CaSinRecognizer", 9, _always),
    "DE_SOCIAL_SECURITY": ("DeSocialSecurityRecognizer", 11, _always),
    "DE_TAX_ID": ("DeTaxIdRecognizer", 11, _always),
    "ES_NIE": ("EsNieRecognizer", 7, _always),
    "ES_NIF": ("EsNifRecognizer", 7, _always),
    "FI_PERSONAL_ID": ("FiPersonalIdentityCodeRecognizer", 9, _always),
    "GB_NHS": ("NhsRecognizer", 10, _always),
    "GB_NINO": ("UkNinoRecognizer", 6, re.compile(r"\b[A-Za-z]{2}(?: ?\d\d){3} ?[A-Da-d]\b").search),
    "IN_AADHAAR": ("InAadhaarRecognizer", 12, _always),
    "IN_PAN": ("InPanRecognizer", 4, re.compile(r"[A-Za-z]{5}\d{4}[A-Za-z]").search),
    "IT_FISCAL_CODE": ("ItFiscalCodeRecognizer", 0, re.compile(r"[A-Za-z]{6}\w{10}").search),
    "KR_RRN": ("KrRrnRecognizer", 13, _always),
    "PL_PESEL": ("PlPeselRecognizer", 11, _always),
    "SE_PERSONNUMMER": ("SePersonnummerRecognizer", 10, _always),
    "SG_NRIC": ("SgFinRecognizer", 7, _always),
    "TH_TNIN": ("ThTninRecognizer", 13, _always),
    "US_ITIN": ("UsItinRecognizer", 9, _always),
    "US_SSN": ("UsSsnRecognizer", 9, _always),
}


#: Yields start, end and score of each value in a text.
_Spans = Callable[[str], Iterator[tuple[int, int, float]]]


class PatternFinder:
    """Finds the values of one detector in texts.

    Args:
        detector: The detector.

    Raises:
        JobSpecError: presidio-analyzer is not installed.
    """

    def __init__(self, detector: PatternsDetector) -> None:
        with require_extra("A detector of type 'patterns'", "privacy"):
            from presidio_analyzer import predefined_recognizers
        logging.getLogger("presidio-analyzer").disabled = True  # its messages quote what was found
        self._kinds: list[tuple[str, int, Callable[[str], object], _Spans]] = []
        for kind in sorted(kinds_of(detector), key="PHONE".__eq__):
            name, digits, may_have = _RECOGNISERS[kind]
            recogniser = getattr(predefined_recognizers, name)
            spans: _Spans
            if kind == "PHONE":
                spans = _Phones(recogniser, detector.countries)
            else:
                spans = _whole(recogniser()) if kind == "IBAN" else _Patterns(kind, recogniser())
            self._kinds.append((kind, digits, may_have, spans))

    def __call__(self, text: str) -> Iterator[Finding]:
        """Yields the values in a text."""
        longest = _longest_number(text)
        for kind, digits, may_have, spans in self._kinds:
            if longest >= digits and may_have(text):
                for start, end, score in spans(text):
                    if score >= MIN_SCORE:
                        yield Finding(start, end, kind, score)
                        if kind == "IBAN":  # the phone numbers come last, and its digits are read as several
                            text = f"{text[:start]}{'_' * (end - start)}{text[end:]}"


def _longest_number(text: str) -> int:
    """Returns the number of digits of the longest number in a text."""
    longest = 0
    for run in _RUN.findall(text):
        if len(run) > longest:
            longest = max(longest, len(run) if run.isdecimal() else len(_DIGITS.findall(run)))
    return longest


def _whole(recogniser: Any) -> _Spans:
    """Returns the search of a recogniser that does more than its patterns say."""

    def spans(text: str) -> Iterator[tuple[int, int, float]]:
        for found in recogniser.analyze(text, recogniser.supported_entities):
            yield found.start, found.end, found.score

    return spans


class _Phones:
    """Reads each number in a text as one of each country, until it is a phone number; a country takes 60 µs."""

    def __init__(self, recogniser: Any, countries: Sequence[str]) -> None:
        self._countries = [_whole(recogniser(supported_regions=(country,))) for country in countries]
        # With its country's code, or in the form of America, also one that nobody was given.
        self._any = [_whole(recogniser(supported_regions=countries[:1], leniency=0))]

    def __call__(self, text: str) -> Iterator[tuple[int, int, float]]:
        text = _TIME.sub(lambda time: "_" * len(time[0]), text)
        for number in _NUMBER.finditer(text):
            written = number[0]
            if written.isdecimal() and len(written) < _BARE_DIGITS and not written.startswith("0"):
                continue
            if _DATE.fullmatch(written):
                continue
            begin = max(0, number.start() - _CONTEXT)
            part = text[begin : number.end() + _CONTEXT]
            is_sure = written.startswith("+") or _AMERICAN.match(written)
            countries = self._any if is_sure else self._countries
            for spans in countries:
                if found := [(begin + start, begin + end, score) for start, end, score in spans(part)]:
                    yield from found
                    break


class _Patterns:
    """The patterns and check digits of a recogniser.

    Its `analyze` takes a multiple of the time for explanations, and leaves out a pattern that takes too long.
    """

    def __init__(self, kind: str, recogniser: Any) -> None:
        import regex

        self._patterns = [
            (regex.compile(pattern.regex, flags=_FLAGS), pattern.score) for pattern in recogniser.patterns
        ]
        if kind == "CREDIT_CARD":
            self._patterns.append((regex.compile(_MORE_CARDS), 0.0))
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
