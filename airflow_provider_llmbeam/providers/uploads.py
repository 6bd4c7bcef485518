"""Request files that were uploaded to a provider, with all prompts of their jobs."""

from __future__ import annotations

from collections.abc import Collection

from airflow_provider_llmbeam.providers.batch_client import BatchProvider
from airflow_provider_llmbeam.providers.errors import BatchError


def delete_uploads(provider: BatchProvider, prefix: str, display_names: Collection[str]) -> None:
    """Deletes the uploaded request files of some jobs, which are found by the display names that we gave them.

    A job may have several: an upload is sent again after a lost reply, and a job may have been refused after it.

    Args:
        provider: The provider.
        prefix: Beginning of these display names.
        display_names: Display names of the jobs, which need their files no more.

    Raises:
        BatchError: Some could not be listed or deleted; the message names them.
    """
    faults = []
    for file in provider.uploads(prefix):
        if file.display_name in display_names:
            try:
                provider.delete_upload(file.name)
            except BatchError as error:
                faults.append(f"Request file {file.name} of {file.display_name}, with all its prompts: {error}")
    if faults:
        raise BatchError(" ".join([*faults, "`SweepBatchInferenceOperator` deletes what is left."]))
