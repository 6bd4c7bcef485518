"""The sample of prompts on which a cascade is calibrated: drawn in a graph that reads the rows of the job."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

import apache_beam as beam

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.cascade.draw import draw_positions
from airflow_provider_llmbeam.pipeline.cascade.stages import StagePrompts, stage_jobs
from airflow_provider_llmbeam.pipeline.context import RunContext
from airflow_provider_llmbeam.pipeline.elements import RenderedRow
from airflow_provider_llmbeam.pipeline.records import encode_record
from airflow_provider_llmbeam.pipeline.transforms.check_rows import wait_for_row_check
from airflow_provider_llmbeam.pipeline.transforms.keys import refuse_duplicates
from airflow_provider_llmbeam.pipeline.transforms.read_requests import read_prompts
from airflow_provider_llmbeam.spec.cascade import Cascade
from airflow_provider_llmbeam.spec.job import JobSpec

#: Number of hexadecimal digits of a fingerprint by which prompts are grouped, so that no worker holds all of them.
_DIGITS = 3


@dataclass(frozen=True)
class SampledPrompt:
    """A prompt of the sample.

    Attributes:
        fingerprint: Its fingerprint for `model`.
        draws: Numbers of the draws that drew it, in order. From `Cascade.draws` on they are for more labels.
        row: One of its rows, for the audit and for judges.
        prompt: The prompt for `model`.
        stages: Fingerprint and prompt for each stage; `None` where a stage makes none of it.
    """

    fingerprint: str
    draws: tuple[int, ...]
    row: Mapping[str, Any]
    prompt: Prompt
    stages: tuple[tuple[str, Prompt] | None, ...]


@dataclass(frozen=True)
class Sample:
    """The sample.

    Attributes:
        rows: Number of rows that are prompts, from which it was drawn.
        prompts: The prompts.
    """

    rows: int
    prompts: tuple[SampledPrompt, ...]

    def of_draws(self, count: int) -> list[SampledPrompt]:
        """Returns the prompts of the first draws."""
        return [each for each in self.prompts if each.draws[0] < count]


def draw_prompts(pipeline: beam.Pipeline, spec: JobSpec, context: RunContext, uri: str) -> None:
    """Adds the steps that draw the sample of a job, and write it to a file; see `draw.draw_sample`.

    Args:
        pipeline: The pipeline.
        spec: The job.
        context: Its run.
        uri: Address of the file.
    """
    cascade = cast("Cascade", spec.cascade)
    prompts, every_row = read_prompts(pipeline, spec, context)
    numbers = prompts.rendered | "Fingerprints" >> beam.Keys() | "CountRows" >> beam.combiners.Count.PerElement()
    groups = numbers | "Group" >> beam.Map(lambda each: (each[0][:_DIGITS], each)) | "ByGroup" >> beam.GroupByKey()
    sizes = groups | "Size" >> beam.Map(lambda group: (group[0], sum(rows for _, rows in group[1])))
    drawn = groups | "Draw" >> beam.FlatMap(
        _draw, beam.pvalue.AsDict(sizes), seed=cascade.seed, count=cascade.draws + cascade.max_labels
    )
    duplicates = () if prompts.duplicate_keys is None else (prompts.duplicate_keys,)
    lines = (
        prompts.rendered
        | "Drawn" >> beam.FlatMap(_with_draws, beam.pvalue.AsDict(drawn))
        | "ByFingerprint" >> beam.GroupByKey()
        | "Encode" >> beam.ParDo(_Encode(spec), *duplicates)
    )
    # Not until the check of the sink, which this process may not reach.
    (lines,) = wait_for_row_check([lines], every_row, spec)
    _ = (
        pipeline
        | "Once" >> beam.Impulse()
        | "WriteSample" >> beam.Map(_write, uri, beam.pvalue.AsDict(sizes), beam.pvalue.AsList(lines))
    )


def read_sample(uri: str) -> Sample:
    """Reads the sample that `draw_prompts` wrote."""
    head, *lines = storage.read(uri).splitlines()
    return Sample(json.loads(head)["rows"], tuple(_decoded(json.loads(line)) for line in lines))


def _draw(
    group: tuple[str, Iterable[tuple[str, int]]], sizes: Mapping[str, int], *, seed: int, count: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the prompts of a group that were drawn, with the numbers of their draws."""
    name, prompts = group[0], sorted(group[1])
    first = sum(rows for each, rows in sizes.items() if each < name)
    ends = list(accumulate(rows for _, rows in prompts))
    draws: dict[str, list[int]] = {}
    for number, position in enumerate(draw_positions(sum(sizes.values()), seed, count)):
        if 0 <= position - first < ends[-1]:
            draws.setdefault(prompts[bisect_right(ends, position - first)][0], []).append(number)
    yield from ((fingerprint, tuple(numbers)) for fingerprint, numbers in draws.items())


def _with_draws(
    rendered: tuple[str, RenderedRow], drawn: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, tuple[tuple[int, ...], RenderedRow]]]:
    if (draws := drawn.get(rendered[0])) is not None:
        yield rendered[0], (draws, rendered[1])


class _Encode(beam.DoFn):
    """Encodes a drawn prompt as one line of JSON."""

    def __init__(self, spec: JobSpec) -> None:
        super().__init__()
        self._spec = spec

    def setup(self) -> None:
        cascade = cast("Cascade", self._spec.cascade)
        jobs = stage_jobs(self._spec, cascade)
        self._stages = [StagePrompts(job, stage) for job, stage in zip(jobs, cascade.stages, strict=True)]

    def process(
        self,
        group: tuple[str, Iterable[tuple[tuple[int, ...], RenderedRow]]],
        duplicate_keys: list[bytes] = [],  # noqa: B006 - never changed
    ) -> Iterator[bytes]:
        refuse_duplicates(duplicate_keys)
        fingerprint, found = group
        draws, (row, text, system, *_) = next(iter(found))
        prompt = Prompt(text, system)
        stages = [
            None if made is None else (made[0], made[1].text, made[1].system)
            for made in (stage.of(row, prompt) for stage in self._stages)
        ]
        yield encode_record(
            {"fingerprint": fingerprint, "draws": draws, "row": row, "prompt": (text, system), "stages": stages}
        )


def _decoded(line: dict[str, Any]) -> SampledPrompt:
    return SampledPrompt(
        fingerprint=line["fingerprint"],
        draws=tuple(line["draws"]),
        row=line["row"],
        prompt=Prompt(*line["prompt"]),
        stages=tuple(None if each is None else (each[0], Prompt(*each[1:])) for each in line["stages"]),
    )


def _write(_: bytes, uri: str, sizes: Mapping[str, int], lines: list[bytes]) -> None:
    head = encode_record({"rows": sum(sizes.values())})
    with storage.create(uri, is_private=True) as file:
        file.writelines((head, *sorted(lines)))


def draws_of(sample: Sample, count: int) -> list[SampledPrompt]:
    """Returns the prompt of each of the first draws, in the order of the draws."""
    by_number = {number: prompt for prompt in sample.prompts for number in prompt.draws}
    return [by_number[number] for number in sorted(by_number)[:count]]
