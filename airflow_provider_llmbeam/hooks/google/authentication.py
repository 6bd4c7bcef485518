"""Credentials of Airflow connections: for requests to a model, and for a job in a process of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.exceptions import AccessDeniedError, CloudUnavailableError
from airflow_provider_llmbeam.hooks.configuration import configured_lists
from airflow_provider_llmbeam.providers.access import Access, open_access
from airflow_provider_llmbeam.spec.allowed import check_token_server
from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model import Model
from airflow_provider_llmbeam.spec.runner import DataflowRunner
from airflow_provider_llmbeam.transport.google_auth import id_token_credentials, is_transient_token_error

if TYPE_CHECKING:
    from airflow_provider_llmbeam.hooks.google.base import GoogleHook

#: An address, or a part of a spec that names one: a source, a sink or an audit.
Place = str | SpecModel


class ModelAuthentication:
    """Returns the authentication headers of one model when called; renews tokens. Blocks.

    Args:
        model: The model.
        environment: Holds the API key if the worker's own environment does not; see `LLMBeamHook.complete_model`.
        hook: Hook with the credentials for tokens; made of the next two arguments if omitted.
        gcp_conn_id: Connection with the credentials for Google Cloud.
        impersonation_chain: Service account to impersonate, or a chain of them.
    """

    def __init__(
        self,
        model: Model,
        environment: Mapping[str, str] | None = None,
        *,
        hook: GoogleHook | None = None,
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
    ) -> None:
        self._model = model
        self._environment = dict(environment or {})
        self._hook = hook
        self._gcp_conn_id = gcp_conn_id
        self._impersonation_chain = impersonation_chain
        self._access: Access | None = None

    def __call__(self) -> Mapping[str, str]:
        """Returns the headers.

        Raises:
            JobSpecError: There is no API key; or the token would go to a server that may not have it.
            CloudError: There are no credentials.
        """
        if not uses_token(self._model):
            self._access = self._access or open_access(self._model, self._environment)
            return _headers_of(self._access)
        check_token_server(self._model, configured_lists()["token_hosts"])
        # Imported here, so that Google's clients are loaded only if they are needed.
        from airflow_provider_llmbeam.hooks.google.base import GoogleHook
        from airflow_provider_llmbeam.hooks.google.errors import usable_connection

        if self._hook is None:
            self._hook = GoogleHook(gcp_conn_id=self._gcp_conn_id, impersonation_chain=self._impersonation_chain)
        hook = self._hook
        with usable_connection(hook.gcp_conn_id):
            if self._access is None:
                self._access = open_access(
                    self._model,
                    find_credentials=lambda _, audience: token_credentials(hook, audience),
                    request=token_request,
                )
            return self._access.headers()


def _headers_of(access: Access) -> Mapping[str, str]:
    """Returns the headers of a model whose token is none of Google's.

    Raises:
        CloudError: The token endpoint refuses the client, or does not answer.
    """
    from google.auth.exceptions import GoogleAuthError

    try:
        return access.headers()
    except GoogleAuthError as error:
        kind = CloudUnavailableError if is_transient_token_error(error) else AccessDeniedError
        raise kind(f"`model.auth` got no token: {error}") from None


def token_request() -> Any:
    """Returns the transport with which credentials fetch a token."""
    from google.auth.transport.requests import Request
    from requests import Session

    from airflow_provider_llmbeam.hooks.google.sessions import with_shared_connections

    return Request(with_shared_connections(Session()))


def token_credentials(hook: GoogleHook, audience: str | None) -> Any:
    """Returns the credentials of a hook.

    Args:
        hook: The hook.
        audience: Address of a service on Cloud Run, for credentials that give ID tokens.

    Raises:
        AccessDeniedError: The credentials are those of a user, who cannot have ID tokens.
    """
    credentials = hook.get_credentials()
    made = credentials if audience is None else id_token_credentials(credentials, audience, token_request())
    if made is None:
        raise AccessDeniedError(
            f"Cloud Run requires an ID token of a service account, and the credentials are of type "
            f"{type(credentials).__name__}. Give the Airflow connection a service account, or name one in "
            "`impersonation_chain`."
        )
    return made


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


def with_key(spec: JobSpec, gcp_conn_id: str) -> JobSpec:
    """Returns the spec with the key of Cloud KMS in a connection, if it has none of its own and uses Google Cloud.

    Raises:
        JobSpecError: The connection cannot be used, or the job cannot be encrypted with its key.
    """
    if spec.kms_key_name is not None or not (uses_google(spec) or isinstance(spec.runner, DataflowRunner)):
        return spec
    from airflow_provider_llmbeam.hooks.google.base import GoogleHook
    from airflow_provider_llmbeam.hooks.google.errors import before_submission

    with before_submission():
        key = GoogleHook(gcp_conn_id=gcp_conn_id).kms_key_name
    return spec if key is None else JobSpec.parse({**spec.model_dump(), "kms_key_name": key})


def uses_google(spec: JobSpec, others: Collection[Model] = (), places: Collection[Place | None] = ()) -> bool:
    """Whether a job sends requests to Google Cloud with the credentials of an account; for arguments see above."""
    if any(map(uses_token, (*spec.models, *others))):
        return True
    safety = spec.safety
    if safety.privacy is not None and safety.privacy.dlp is not None:
        return True
    media = (uri for each in spec.prompt.media for uri in (each.uri, *each.root))
    sinks = spec.sinks_by_field.values()
    return any(map(_is_on_google, (spec.source, *sinks, spec.state_uri, safety.audit, *media, *places)))


def uses_token(model: Model) -> bool:
    """Whether the requests to a model carry a token of an account of Google Cloud."""
    return model.api.authentication in ("access_token", "id_token")


def _is_on_google(place: Place | None) -> bool:
    if not isinstance(place, SpecModel):
        return place is not None and place.startswith("gs://")
    return getattr(place, "type", None) in ("bigquery", "pubsub") or _is_on_google(getattr(place, "uri", None))
