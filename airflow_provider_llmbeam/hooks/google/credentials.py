"""Credentials of an Airflow connection, for a job that runs in a process of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from airflow_provider_llmbeam.hooks.google.authentication import authentication_of
from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model import Model

#: An address, or a part of a spec that names one: a source, a sink or an audit.
Place = str | SpecModel


@contextmanager
def google_credentials(
    spec: JobSpec, gcp_conn_id: str, others: Collection[Model] = (), places: Collection[Place | None] = ()
) -> Iterator[None]:
    """Makes a connection's key the default credentials while the body runs, if the job needs Google Cloud.

    Args:
        spec: The job.
        gcp_conn_id: The connection.
        others: Models that the job asks besides its own.
        places: What is read and written besides the places of the spec.

    Raises:
        JobSpecError: The connection cannot be used.
    """
    if not uses_google(spec, others, places):
        yield
        return
    from airflow_provider_llmbeam.hooks.google.base import GoogleHook
    from airflow_provider_llmbeam.hooks.google.errors import before_submission, usable_connection

    with before_submission(), usable_connection(gcp_conn_id):
        key_file = GoogleHook(gcp_conn_id=gcp_conn_id).provide_gcp_credential_file_as_context()
        key_file.__enter__()
    try:
        yield
    finally:
        key_file.__exit__(None, None, None)


def uses_google(spec: JobSpec, others: Collection[Model] = (), places: Collection[Place | None] = ()) -> bool:
    """Whether a job sends requests to Google Cloud with the credentials of an account; for arguments see above."""
    if any(authentication_of(model) in ("access_token", "id_token") for model in (*spec.models, *others)):
        return True
    safety = spec.safety
    if safety.privacy is not None and safety.privacy.dlp is not None:
        return True
    media = (uri for each in spec.prompt.media for uri in (each.uri, each.root))
    return any(map(_is_on_google, (spec.source, spec.sink, spec.state_uri, safety.audit, *media, *places)))


def _is_on_google(place: Place | None) -> bool:
    if not isinstance(place, SpecModel):
        return place is not None and place.startswith("gs://")
    return getattr(place, "type", None) in ("bigquery", "pubsub") or _is_on_google(getattr(place, "uri", None))
