"""Detection of personal data in a text, by all detectors of a job.

What a service has found in it, for the detector `dlp`, is an argument: many texts are sent there at once.
"""

from __future__ import annotations

import importlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.privacy.finding import Find, Finding, Inspected
from airflow_provider_llmbeam.pipeline.privacy.forms import find_in_forms
from airflow_provider_llmbeam.pipeline.privacy.patterns import TIMEOUT_SECONDS, PatternFinder
from airflow_provider_llmbeam.pipeline.privacy.placeholder import placeholders_in
from airflow_provider_llmbeam.spec.safety.privacy import CustomDetector, Detector, DlpDetector, PatternsDetector

#: Number of texts whose findings are kept: columns such as a sender have few distinct values.
_KEPT_TEXTS, _KEPT_CHARACTERS = 4096, 200


class DetectionError(Exception):
    """A detector cannot tell whether a text has personal data. The message does not quote the text."""


class Detection:
    """Finds personal data in texts.

    Args:
        detectors: The detectors.

    Raises:
        JobSpecError: presidio-analyzer is not installed, or a function cannot be imported.
    """

    def __init__(self, detectors: Sequence[Detector]) -> None:
        self._finders: list[Find] = []
        for index, detector in enumerate(detectors):
            if isinstance(detector, DlpDetector):
                continue
            if isinstance(detector, PatternsDetector):
                self._finders.append(PatternFinder(detector))
            elif detector.pattern is not None:
                self._finders.append(_pattern_finder(detector.name, detector.pattern))
            else:
                self._finders.append(_function_finder(index, detector))
        self._find_kept = lru_cache(_KEPT_TEXTS)(self._find)

    def find(self, text: str, inspected: Inspected = ()) -> tuple[Finding, ...]:
        """Returns the values in a text, in their order; none overlaps another one or a placeholder.

        Overlapping findings become one value of the surest kind, so that no part of any is left readable.

        Args:
            text: The text.
            inspected: What a service has found in it.

        Raises:
            DetectionError: A detector failed.
        """
        if isinstance(inspected, str):
            raise DetectionError(inspected)
        if inspected or len(text) > _KEPT_CHARACTERS:
            return self._find(text, inspected)
        return self._find_kept(text)

    def _find(self, text: str, inspected: tuple[Finding, ...] = ()) -> tuple[Finding, ...]:
        found: list[Finding] = [*inspected]
        for finder in self._finders:
            try:
                found += find_in_forms(finder, text)
            except DetectionError:
                raise
            except Exception as error:
                raise DetectionError(f"a detector of `safety.privacy` raised {type(error).__name__}") from error
        return tuple(_without_placeholders(text, _merge(found))) if found else ()


def _merge(found: list[Finding]) -> Iterator[Finding]:
    found.sort(key=lambda each: (each.start, -each.end))
    current = found[0]
    for each in found[1:]:
        if each.start >= current.end:
            yield current
            current = each
            continue
        surest = max(current, each, key=lambda one: (one.score, one.end - one.start))
        current = Finding(current.start, max(current.end, each.end), surest.kind, surest.score)
    yield current


def _without_placeholders(text: str, found: Iterator[Finding]) -> Iterator[Finding]:
    """Leaves out what is found in placeholders, and cuts what reaches into one."""
    taken = [match.span() for match in placeholders_in(text)]
    starts, ends = [start for start, _ in taken], [end for _, end in taken]
    for each in found:
        inside = taken[bisect_right(ends, each.start) : bisect_left(starts, each.end)]
        if not inside:
            yield each
            continue
        low = each.start
        for start, end in (*inside, (each.end, each.end)):
            if text[low:start].strip():
                yield Finding(low, start, each.kind, each.score)
            low = end


def _pattern_finder(name: str, pattern: str) -> Find:
    import regex

    compiled = regex.compile(pattern)

    def find(text: str) -> Iterator[Finding]:
        try:
            for match in compiled.finditer(text, timeout=TIMEOUT_SECONDS):
                if match.end() > match.start():
                    yield Finding(match.start(), match.end(), name, 1.0)
        except TimeoutError:
            raise DetectionError(
                f"the pattern of {name} took more than {TIMEOUT_SECONDS:g} s for {len(text):,} characters"
            ) from None

    return find


def _function_finder(index: int, detector: CustomDetector) -> Find:
    name, path = detector.name, str(detector.function)
    module, _, attribute = path.partition(":")
    try:
        function: Any = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise JobSpecError(
            f"`safety.privacy.detectors.{index}.function`: {path!r} cannot be imported by the Python of the job: "
            f"{type(error).__name__}: {error}."
        ) from error

    def find(text: str) -> Iterator[Finding]:
        try:
            spans = [(int(start), int(end)) for start, end in function(text)]
        except Exception as error:
            raise DetectionError(f"the function {path!r} raised {type(error).__name__}") from error
        for start, end in spans:
            if not 0 <= start < end <= len(text):
                raise DetectionError(
                    f"the function {path!r} returned ({start}, {end}) for a text of {len(text):,} characters"
                )
            yield Finding(start, end, name, 1.0)

    return find


@lru_cache(8)
def detection_of(detectors: tuple[Detector, ...]) -> Detection:
    """Returns the detection that all steps of a process share, and with it the findings that it keeps.

    Raises:
        JobSpecError: See `Detection`.
    """
    return Detection(detectors)
