"""The limit of the tokens in the unended jobs of a model, over which OpenAI lets a job fail. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection

from airflow_provider_llmbeam.providers.batch import BatchJob

#: "Enqueued token limit reached for gpt-4o in organization org-…. Limit: 90,000 enqueued tokens. Please try again
#: once some in_progress batches have been completed." (github.com/openai/openai-python/issues/2084)
_LIMIT = re.compile(r"Limit: ([\d,]{1,20}) enqueued tokens")


def token_limit(job: BatchJob) -> int | None:
    """Returns the limit that the error of a job names; `None` if it names none."""
    found = _LIMIT.search(job.error or "")
    digits = "" if found is None else found[1].replace(",", "")
    return int(digits) if digits else None


def room_beside(jobs: Collection[BatchJob]) -> int | None:
    """Returns the number of jobs that may be submitted after one has failed over the limit; `None` for no limit.

    Two for each job that has ended since, so that more run at once where others have freed tokens, less those that
    were submitted since. One if no job of the run holds tokens: the jobs of others are not known.

    Args:
        jobs: The newest job of each request file that has one.
    """
    failed_at = max((job.created_at for job in jobs if job.was_over_quota), default=None)
    if failed_at is None:
        return None
    others = [job for job in jobs if not job.was_over_quota]
    if all(job.has_ended for job in others):
        return 1
    ended = sum(job.has_ended and (job.ended_at or 0.0) >= failed_at for job in others)
    submitted = sum(job.created_at > failed_at for job in others)
    return max(0, 2 * ended - submitted)
