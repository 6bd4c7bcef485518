"""What an optional part of a spec adds to a job, and what the graph hands to it.

A new feature is a part of the spec, with `find_fault` if other parts can contradict it; a folder whose
`feature.py` subclasses `Feature`; and an entry of `features.FEATURES`. What it counts is a part of the report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import apache_beam as beam

from airflow_provider_llmbeam.pipeline.context import RunContext
from airflow_provider_llmbeam.spec.job import JobSpec

PartT = TypeVar("PartT")


@dataclass(frozen=True)
class Prompts:
    """The prompts of a job, before they are looked up in the journal.

    Attributes:
        rendered: Those that may be sent, as `(fingerprint, RenderedRow)`.
        replaced: `AnsweredRow`s of those that are not sent.
        failed: `FailedRow`s.
        tallies: `Tally`s.
        delay: Delays requests until the rows and the sink are checked.
        duplicate_keys: Duplicate keys, which fail the job before anything is sent; `None` if they do not.
    """

    rendered: beam.PCollection
    replaced: Sequence[beam.PCollection]
    failed: Sequence[beam.PCollection]
    tallies: Sequence[beam.PCollection]
    delay: Callable[[beam.PCollection], beam.PCollection]
    duplicate_keys: beam.pvalue.AsList | None


@dataclass(frozen=True)
class Results:
    """The outcomes of a job, before they are written.

    Attributes:
        answered: `AnsweredRow`s.
        failed: `FailedRow`s.
        tallies: `Tally`s.
        audited: `AuditedPair`s of a cascade, see `cascade.transform`.
    """

    answered: Sequence[beam.PCollection]
    failed: Sequence[beam.PCollection]
    tallies: Sequence[beam.PCollection]
    audited: Sequence[beam.PCollection] = ()


class Feature(Generic[PartT]):
    """What an optional part of a spec adds to its job. A hook that a feature does not override does nothing.

    What only one feature does is no hook: the graph calls it by its name.

    Args:
        spec: The job.
        part: The part.
    """

    def __init__(self, spec: JobSpec, part: PartT) -> None:
        self.spec, self.part = spec, part

    @staticmethod
    def part_of(spec: JobSpec) -> PartT | None:
        """Returns the part of a spec; nothing for a job without this feature."""
        raise NotImplementedError

    def check_keys(self) -> None:
        """Checks its keys on the machine that sends, before a row is read.

        Raises:
            JobSpecError: One is missing.
        """

    def change_prompts(self, prompts: Prompts, context: RunContext) -> Prompts:
        """Adds its steps between the rendered prompts and the journal."""
        return prompts

    def change_answers(self, results: Results, context: RunContext) -> Results:
        """Adds its steps between the answers and the sink."""
        return results

    def before_publication(self) -> None:
        """Does what follows the last request, before anything is published; a repeated step does it again.

        Raises:
            JobFailedError: It cannot be done now; nothing is published.
        """
