"""Credentials of an Airflow connection, for a job that runs in a process of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from airflow_provider_llmbeam.google_cloud.authentication import authentication_of
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model import Model


@contextmanager
def google_credentials(spec: JobSpec, gcp_conn_id: str, others: Collection[Model] = ()) -> Iterator[None]:
    """Makes a connection's key the default credentials while the body runs, if the job needs Google Cloud.

    Args:
        spec: The job.
        gcp_conn_id: The connection.
        others: Models that the job asks besides its own.

    Raises:
        JobSpecError: The connection cannot be used.
    """
    if not uses_google(spec, others):
        yield
        return
    from airflow_provider_llmbeam.google_cloud.base import GoogleHook
    from airflow_provider_llmbeam.google_cloud.errors import before_submission, usable_connection

    with before_submission(), usable_connection(gcp_conn_id):
        key_file = GoogleHook(gcp_conn_id=gcp_conn_id).provide_gcp_credential_file_as_context()
        key_file.__enter__()
    try:
        yield
    finally:
        key_file.__exit__(None, None, None)


def uses_google(spec: JobSpec, others: Collection[Model] = ()) -> bool:
    """Whether a job sends requests to Google Cloud with the credentials of an account."""
    if any(authentication_of(model) in ("access_token", "id_token") for model in (*spec.models, *others)):
        return True
    if {"bigquery", "pubsub"} & {spec.source.type, spec.sink.type}:
        return True
    places = (spec.state_uri, getattr(spec.source, "uri", None), getattr(spec.sink, "uri", None))
    return any(place is not None and place.startswith("gs://") for place in places)
