"""Which Beam runner carries the job."""

from __future__ import annotations

from collections.abc import Sequence

from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner


def pinned_runner(beam_options: Sequence[str]) -> tuple[FnApiRunner | None, PipelineOptions]:
    """Takes the runner that the options name; for a local one, always `FnApiRunner`.

    Beam's own default, `DirectRunner`, may pick Prism instead, which is a binary that it downloads at run time.

    Returns:
        The runner, or `None` when the options decide, and the options.
    """
    options = PipelineOptions(list(beam_options))
    named = options.view_as(StandardOptions).runner or "direct"
    short = named.rpartition(".")[2].lower().removesuffix("runner")  # Beam knows each of these spellings
    return (FnApiRunner() if short in ("direct", "fnapi") else None), options
