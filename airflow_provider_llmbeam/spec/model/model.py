"""Models."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self, get_args
from urllib.parse import urlencode, urlsplit

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, field_validator, model_validator

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.base import (
    FieldFaultError,
    SpecModel,
    SpecProblem,
    http_address,
    problems_of,
    variable_name,
)
from airflow_provider_llmbeam.spec.fields.names import ChatRoute, FitUri, Labels, VertexEndpoint
from airflow_provider_llmbeam.spec.fields.registered_model import RegisteredModel
from airflow_provider_llmbeam.spec.fields.text import from_text
from airflow_provider_llmbeam.spec.model.gateway import Auth, Headers, Query
from airflow_provider_llmbeam.spec.model.generation import Generation
from airflow_provider_llmbeam.spec.model.media import MIB, MediaCounting, MediaRules, chat_media
from airflow_provider_llmbeam.spec.model.parameters import SAMPLING, STREAM, USE_EFFORT, USE_SCHEMA, ParameterRules

_TIERS = frozenset({"flex", "priority"})

#: `access_token` is for Google's own services, `id_token` for one service on Cloud Run, `oauth` a token of another
#: issuer, see `Auth`.
Authentication = Literal["none", "api_key", "access_token", "id_token", "oauth"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelApi:
    """What the APIs of models differ by besides their wire format, which is in a folder of `providers`.

    Attributes:
        service: Name of the service, for messages.
        authentication: The authentication that it requires.
        key_variables: Environment variables that may hold the API key; none if it takes a token instead.
        key_header: Header with the API key, and the text before the key.
        key_prefix: Beginning of the provider's keys, by which those of several providers are told apart.
        headers: Further headers: environment variables with their values, by name.
        fixed_headers: Further headers with their values, which are no secrets, such as the version of the API.
        certificate: Files of a client's certificate and its key, for mutual TLS.
        requires_key: Whether it answers nothing without a key.
        base_url_variable: Environment variable that gives the address if the spec does not. Names as in
            google-genai 2.34 (`_base_url.get_base_url`) and openai 2.45 (`OpenAI.__init__`).
        has_batch: Whether it has batch inference.
        tiers: Service tiers that it has besides the standard one.
        price_list: Name of the provider in the list of prices; `None` for a server that is billed by the hour.
        embeds: Whether it returns vectors, too.
        closes_objects: Whether each object of an output schema has its `properties` alone, so that it has no free
            maps.
        min_marked_tokens: Smallest beginning of a prompt that it stores if requests mark it, in tokens; `None` for
            a provider without marks.
        domains: Domains of the provider itself.
        quota_prefix: Text before the names of its models in quotas of Google Cloud.
    """

    service: str
    authentication: Authentication = "none"
    key_variables: tuple[str, ...] = ()
    key_header: tuple[str, str] = ("Authorization", "Bearer ")
    key_prefix: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    fixed_headers: Mapping[str, str] = field(default_factory=dict)
    certificate: tuple[str, str] | None = None
    requires_key: bool = False
    base_url_variable: str | None = None
    has_batch: bool = False
    tiers: frozenset[str] = frozenset()
    price_list: str | None = None
    embeds: bool = False
    closes_objects: bool = False
    min_marked_tokens: int | None = None
    domains: tuple[str, ...] = ("googleapis.com",)
    quota_prefix: str = ""

    def key(self, *environments: Mapping[str, str]) -> str | None:
        """Returns the API key in the first of these environments that has one; `None` without a key."""
        return value_of(self.key_variables, environments)

    @property
    def secret_variables(self) -> tuple[str, ...]:
        """Environment variables that may hold the API key, or hold the value of a header."""
        return (*self.key_variables, *self.headers.values())


def value_of(variables: Iterable[str], environments: Sequence[Mapping[str, str]]) -> str | None:
    """Returns the first value of variables in environments; `None` if none has one."""
    found = (each.get(name) for name in variables for each in environments)
    return next(filter(None, found), None)


def _vertex_origin(location: str) -> str:
    """Returns the address of Vertex AI in a location; as google-genai 2.34 (`_api_client.BaseApiClient`)."""
    if location == "global":
        return "https://aiplatform.googleapis.com"
    if location in ("us", "eu"):
        return f"https://aiplatform.{location}.rep.googleapis.com"
    return f"https://{location}-aiplatform.googleapis.com"


def _none_if_empty(project: str | None) -> str | None:
    return project or None  # a template of Airflow without a value renders to an empty text


_GEMINI_TYPES = (
    *("image/png", "image/jpeg", "image/webp", "image/heic", "image/heif", "image/bmp", "image/avif"),
    *("application/pdf", "text/*", "audio/*", "video/*"),
)
_GEMINI_SHOWN = "PNG, JPEG, WebP, HEIC, PDF, text, audio or video"
_BEFORE_GEMINI_3 = re.compile(r"(.*/)?gemini-[12]\b")
#: Parameters of servers with chat completions that have those of vLLM.
_CHAT_PARAMETERS = SAMPLING | STREAM | {"reasoning_effort", "logprobs", "structured_outputs", "extra_body"}


class GeminiModel(SpecModel):
    """A Gemini model.

    With `project` it is served by Vertex AI and needs Google credentials; without, by the Developer API, which
    needs the environment variable `GOOGLE_API_KEY`.

    Attributes:
        name: Name, e.g. `gemini-3.5-flash-lite`; a tuned model is `projects/…/locations/…/endpoints/…`.
        project: Google Cloud project that is billed.
        location: Region, or `global`, which has the most capacity, and alone the thresholds of usage tiers.
        base_url: Another address of the same API, e.g. a private endpoint.
        labels: Labels of the requests and of the batch-inference jobs on Vertex AI, by which Cloud Billing breaks
            down the cost, e.g. `{"team": "data"}`. Operators add `llmbeam-dag` and `llmbeam-task`.
        headers: Further headers for a gateway, see `OpenAIModel`.
    """

    type: Literal["gemini"] = "gemini"
    name: Annotated[str, Field(min_length=1)] = "gemini-3.5-flash-lite"
    project: str | None = None
    location: str = "global"
    base_url: str | None = None
    #: Vertex AI takes 64. Source: cloud.google.com/vertex-ai/generative-ai/docs/multimodal/add-labels-to-api-calls
    labels: Annotated[Labels, Field(max_length=64)] = Field(default_factory=dict)
    headers: Headers = Field(default_factory=dict)

    connection_fields: ClassVar[tuple[str, ...]] = ("base_url", "project", "location", "headers")

    _address = field_validator("base_url")(http_address)
    _project = field_validator("project")(_none_if_empty)

    @property
    def media(self) -> MediaRules:
        """The files that it takes."""
        if self.project:
            return MediaRules(
                server="Gemini on Vertex AI",
                by_address=frozenset({"web", "gs"}),
                types=_GEMINI_TYPES,
                types_shown=_GEMINI_SHOWN,
                max_bytes={"image/*": 7 * MIB, "text/plain": 7 * MIB, "application/pdf": 50 * MIB},
                max_storage_bytes={"image/*": 30 * MIB, "application/pdf": 50 * MIB},
                max_request_bytes=500 * MIB,
            )
        return MediaRules(
            server="the Gemini Developer API",
            by_address=frozenset({"web"}),
            types=_GEMINI_TYPES,
            types_shown=_GEMINI_SHOWN,
            max_bytes={"application/pdf": 50 * MIB},
            max_request_bytes=100 * MIB,
            max_upload_bytes=2048 * MIB,
        )

    media_counting: ClassVar[MediaCounting] = "gemini"

    @property
    def parameters(self) -> ParameterRules:
        """The parameters of answers that it takes."""
        is_on_vertex_ai, instead = self.project is not None, dict(USE_SCHEMA)
        sent = SAMPLING | STREAM | {"thinking_budget_tokens", "media_resolution", "safety_settings"}
        sent |= {"google_search", "logprobs"}
        if self.is_before_3:
            instead["thinking_level"] = "models before Gemini 3 take `thinking_budget_tokens` instead"
        else:
            sent |= {"thinking_level"}
            instead["reasoning_effort"] = "use `generation.thinking_level`"
        if is_on_vertex_ai:
            sent |= {"model_armor"}
        else:
            instead["model_armor"] = "set `model.project`, as Vertex AI has it"
        return ParameterRules(
            server="Gemini on Vertex AI" if is_on_vertex_ai else "the Gemini Developer API",
            sent=sent,
            instead=instead,
            # `GenerationConfig.seed` is an int32 in the Discovery document of aiplatform.v1.
            max_seed=2**31 - 1,
            # Source: `GenerationConfig` in ai.google.dev/api/generate-content, and Vertex AI's reference
            max_stop_sequences=5,
        )

    @property
    def is_before_3(self) -> bool:
        """Whether it is older than Gemini 3."""
        return _BEFORE_GEMINI_3.match(self.name) is not None

    @property
    def api(self) -> ModelApi:
        """The API that has it."""
        given = self.base_url is not None
        if self.project:
            return ModelApi(
                service="Vertex AI",
                authentication="access_token",
                headers=self.headers,
                base_url_variable=None if given else "GOOGLE_VERTEX_BASE_URL",
                has_batch=True,
                tiers=_TIERS,
                price_list="google",
                embeds=True,
            )
        return ModelApi(
            service="The Gemini Developer API",
            authentication="api_key",
            key_variables=("GOOGLE_API_KEY", "GEMINI_API_KEY"),
            key_header=("x-goog-api-key", ""),
            headers=self.headers,
            requires_key=True,
            base_url_variable=None if given else "GOOGLE_GEMINI_BASE_URL",
            has_batch=True,
            tiers=_TIERS,
            price_list="google",
            embeds=True,
        )

    @property
    def address(self) -> str:
        """Address of the model, without the method.

        Names and hosts as in google-genai 2.34 (`_transformers.t_model`, `_api_client.BaseApiClient`).
        """
        name, location = self.name, self.location
        if not self.project:
            named = name if name.startswith(("models/", "tunedModels/")) else f"models/{name}"
            return f"{self.base_url or 'https://generativelanguage.googleapis.com'}/v1beta/{named}"
        if "/" not in name:
            name = f"publishers/google/models/{name}"
        elif not name.startswith(("projects/", "publishers/", "models/")):
            publisher, _, name = name.partition("/")
            name = f"publishers/{publisher}/models/{name}"
        if not name.startswith("projects/"):
            name = f"projects/{self.project}/locations/{location}/{name}"
        return f"{self.base_url or _vertex_origin(location)}/v1beta1/{name}"


class OpenAIModel(SpecModel):
    """A model of a server with the OpenAI API: vLLM, Ollama, llama.cpp, or a hosted one.

    Attributes:
        name: Name of the model on the server.
        base_url: Address of the API, including `/v1`. It is written to logs and reports, so it holds neither a
            password nor a query.
        query: Parameters of each address, e.g. `{"api-version": "2024-10-21"}`; no secrets.
        headers: Further headers, each with the environment variable that holds its value, e.g.
            `{"x-portkey-config": "PORTKEY_CONFIG"}`. The field `headers` in the extra of a connection has values
            instead. A header replaces an equal one of the authentication.
        auth: How requests authenticate.
        api_key_env: Environment variable that holds the API key, with OAuth the secret of the client. If it is
            unset, no key is sent: a self-hosted server rarely requires one.
        max_tokens_field: Field of a request that has `generation.max_output_tokens`. `None`: the one that the
            server wants, which is learned from its first refusal of the other one.
        id_token_audience: Address of the service on Cloud Run, if the server is one. Each request then carries an
            ID token of a service account that may invoke the service, and no key.
    """

    type: Literal["openai"]
    name: Annotated[str, Field(min_length=1)]
    base_url: str = "https://api.openai.com/v1"
    query: Query = Field(default_factory=dict)
    headers: Headers = Field(default_factory=dict)
    auth: Auth = Field(default_factory=Auth)
    api_key_env: str = "OPENAI_API_KEY"
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    id_token_audience: str | None = None

    connection_fields: ClassVar[tuple[str, ...]] = ("base_url", "query", "headers", "auth")
    project: ClassVar[None] = None
    location: ClassVar[str] = ""

    _address = field_validator("base_url", "id_token_audience")(http_address)
    _variable = field_validator("api_key_env")(variable_name)

    @model_validator(mode="after")
    def _authenticates_once(self) -> Self:
        if self.id_token_audience is not None and self.auth.type != "bearer":
            raise FieldFaultError(
                "auth.type",
                "cannot be set with `id_token_audience`, whose token takes its place",
                self.auth.type,
            )
        return self

    @property
    def api(self) -> ModelApi:
        """The API that has it."""
        host, takes_key = urlsplit(self.base_url).hostname or "", self.id_token_audience is None
        by_key: Authentication = "oauth" if self.auth.type == "oauth" else "api_key"
        return ModelApi(
            service="OpenAI" if self.is_openais else "The server",
            authentication=by_key if takes_key else "id_token",
            key_variables=(self.api_key_env,) if takes_key else (),
            key_header=self.auth.key_header,
            key_prefix="sk-",
            requires_key=takes_key and (host == "api.openai.com" or by_key == "oauth"),
            headers=self.headers,
            certificate=self.auth.certificate,
            base_url_variable=None if "base_url" in self.model_fields_set else "OPENAI_BASE_URL",
            has_batch=True,  # of another server as far as it offers it, which is found out before a job begins
            tiers=_TIERS if self.is_openais else frozenset(),
            price_list="openai" if host == "api.openai.com" else None,
            embeds=True,
            domains=("api.openai.com", "googleapis.com"),
        )

    @property
    def parameters(self) -> ParameterRules:
        """The parameters of answers that it takes."""
        if not self.is_openais:
            return ParameterRules(server="a server with the OpenAI API", sent=_CHAT_PARAMETERS, instead=USE_EFFORT)
        return ParameterRules(
            server="OpenAI",
            sent=_CHAT_PARAMETERS - {"top_k", "structured_outputs"},
            instead=USE_EFFORT | USE_SCHEMA,
            max_stop_sequences=4,  # openai 2.54, `stop` of `types.chat.CompletionCreateParams`
        )

    @property
    def media(self) -> MediaRules:
        """The files that it takes."""
        if not self.is_openais:
            return chat_media()
        return MediaRules(
            server="OpenAI",
            by_address=frozenset({"web"}),
            by_address_types=("image/*",),
            types=(
                *("image/png", "image/jpeg", "image/webp", "image/gif"),
                *("audio/wav", "audio/mpeg", "audio/mp3", "application/pdf"),
            ),
            types_shown="PNG, JPEG, WebP, GIF, WAV, MP3 or PDF",
            max_request_bytes=50 * MIB,
            needs_type=False,
        )

    @property
    def media_counting(self) -> MediaCounting:
        """How the tokens of its files are counted."""
        return "openai" if self.is_openais else "weights"

    @property
    def is_openais(self) -> bool:
        """Whether OpenAI itself answers, and not another server with its API."""
        return (urlsplit(self.base_url).hostname or "").endswith("api.openai.com")

    @property
    def address(self) -> str:
        """Address of the API."""
        return self.base_url

    def url_of(self, path: str) -> str:
        """Returns the address of a method, e.g. `chat/completions`."""
        return f"{self.base_url}/{path}{'?' if self.query else ''}{urlencode(self.query)}"


#: Version of the API, on Vertex AI as well. Source: anthropic 2.14 (`_constants`, `lib.vertex`); `2023-06-01`, and
#: `vertex-2023-10-16` there, are older ones. The key is a bearer token in that client (`Anthropic._api_key_auth`).
ANTHROPIC_VERSION = "2026-10-21"
#: A model that stores only longer heads ignores the mark.
#: Source: platform.claude.com/docs/en/build-with-claude/prompt-caching (2026-11)
_MIN_MARKED_TOKENS = 1_024


class AnthropicModel(SpecModel):
    """A Claude model.

    With `project` it is served by Vertex AI and needs Google credentials; without, by the Claude API, which needs
    a key. The gateway that Anthropic manages on Google Cloud is not supported.

    Attributes:
        name: Name, e.g. `claude-haiku-5-5`; some on Vertex AI have a date, `claude-haiku-4-5@20251001`.
        project: Google Cloud project that is billed.
        location: Region of Vertex AI, or `global`, `us` or `eu`.
        base_url: Another address of the same API, e.g. of a gateway, with or without `/v1`.
        headers: Further headers for a gateway, see `OpenAIModel`.
        api_key_env: Environment variable that holds the API key.
    """

    type: Literal["anthropic"]
    name: Annotated[str, Field(min_length=1)]
    project: str | None = None
    location: str = "global"
    base_url: str | None = None
    headers: Headers = Field(default_factory=dict)
    api_key_env: str = "ANTHROPIC_API_KEY"

    connection_fields: ClassVar[tuple[str, ...]] = ("base_url", "project", "location", "headers")

    _address = field_validator("base_url")(http_address)
    _project = field_validator("project")(_none_if_empty)
    _variable = field_validator("api_key_env")(variable_name)

    @property
    def media(self) -> MediaRules:
        """The files that it takes; on Vertex AI only bytes, as nothing documents addresses there."""
        return MediaRules(
            server="Anthropic",
            by_address=frozenset() if self.project else frozenset({"web"}),
            types=("image/png", "image/jpeg", "image/webp", "image/gif", "application/pdf"),
            types_shown="PNG, JPEG, WebP, GIF or PDF",
            max_request_bytes=32 * MIB,
        )

    media_counting: ClassVar[MediaCounting] = "claude"

    @property
    def api(self) -> ModelApi:
        """The API that has it."""
        if self.project:
            return ModelApi(
                service="Vertex AI",
                authentication="access_token",
                headers=self.headers,
                has_batch=True,
                price_list="google",
                closes_objects=True,
                min_marked_tokens=_MIN_MARKED_TOKENS,
                quota_prefix="anthropic-",
            )
        return ModelApi(
            service="Anthropic",
            authentication="api_key",
            key_variables=(self.api_key_env,),
            key_prefix="sk-ant-",
            headers=self.headers,
            fixed_headers={"anthropic-version": ANTHROPIC_VERSION},
            requires_key=True,
            base_url_variable=None if self.base_url else "ANTHROPIC_BASE_URL",
            has_batch=True,
            price_list="anthropic",
            closes_objects=True,
            min_marked_tokens=_MIN_MARKED_TOKENS,
            domains=("api.anthropic.com",),
        )

    @property
    def parameters(self) -> ParameterRules:
        """The parameters of answers that it takes."""
        return ParameterRules(
            server="Anthropic",
            sent=STREAM | {"thinking_budget_tokens", "reasoning_effort"},
            instead=USE_EFFORT | USE_SCHEMA,
            efforts=("low", "medium", "high", "xhigh", "max"),
            min_thinking_tokens=1024,
        )

    @property
    def address(self) -> str:
        """Address of the API, or on Vertex AI of the model, without the method.

        Names as in anthropic 2.14 (`lib.vertex._client`).
        """
        if not self.project:
            return f"{(self.base_url or 'https://api.anthropic.com').removesuffix('/v1')}/v1"
        place = f"projects/{self.project}/locations/{self.location}"
        origin = self.base_url or _vertex_origin(self.location)
        return f"{origin}/v1/{place}/publishers/anthropic/models/{self.name}"

    def messages_url(self, *, stream: bool = False) -> str:
        """Returns the address of the method that takes the requests.

        Args:
            stream: Whether the answers are streamed.
        """
        if not self.project:
            return f"{self.address}/messages"
        return f"{self.address}:{'streamRawPredict' if stream else 'rawPredict'}"


class VertexEndpointModel(SpecModel):
    """A model that is deployed to an endpoint of Vertex AI.

    Attributes:
        name: Name of the model, e.g. `google/gemma-3-4b-it`, or that of a version of a registered model,
            `projects/…/locations/…/models/…@3`. It is recorded with the answers and not sent, as an endpoint has
            one model; an answer is never used for a model of another name, or of another version.
        endpoint: Resource name, `projects/…/locations/…/endpoints/…`.
        base_url: `https://` and the dedicated DNS name of the endpoint, if it has one. `None`: the address that
            all endpoints of the location share.
        request_format: `chat` sends chat completions of the OpenAI API, which are the only format with images,
            output schemas and streams. `instances` sends several prompts per `:predict`; `raw` one prompt per
            `:rawPredict`, as `/generate` of vLLM takes it.
        chat_route: Method of the endpoint that takes a chat: `chat_completions`, which Vertex AI documents for the
            vLLM and TGI of Model Garden alone, or `raw_predict`, which passes it unchanged to the prediction route
            of the container, e.g. `/v1/chat/completions`.
        predict_url: Address of a private endpoint in a peered network, `predictHttpUri` of its deployed model. All
            requests go there, unchanged to the container, without a token and without streams.
        network: VPC network that alone reaches the endpoint, `projects/NUMBER/global/networks/NAME`. The workers
            of a job must be in it; `None` checks nothing.
        deployed_models: Names of several models that share the requests, by the id of the deployed model. The name
            of the one that answered is recorded with the answer, as far as Vertex AI says it: in `predict`, and
            with `chat_route` 'raw_predict'. Answers are shared with jobs that have the same models alone.
    """

    type: Literal["vertex_endpoint"]
    name: Annotated[str, Field(min_length=1)]
    endpoint: VertexEndpoint
    base_url: str | None = None
    request_format: Literal["chat", "instances", "raw"] = "chat"
    chat_route: ChatRoute = "chat_completions"
    predict_url: str | None = None
    network: str | None = None
    deployed_models: dict[str, str] = Field(default_factory=dict)

    _address = field_validator("base_url", "predict_url")(http_address)

    @field_validator("name")
    @classmethod
    def _no_alias(cls, name: str) -> str:
        if (registered := RegisteredModel.read(name)) and not registered.is_fixed:
            raise ValueError(
                "must have the number of a version (`ResolveModelOperator` finds it): an alias can move to a "
                "version with other answers"
            )
        return name

    @property
    def project(self) -> str:
        """The project of the endpoint."""
        return self.endpoint.split("/")[1]

    @property
    def location(self) -> str:
        """The location of the endpoint."""
        return self.endpoint.split("/")[3]

    @property
    def media(self) -> MediaRules:
        """The files that it takes."""
        return chat_media(self.max_request_bytes)

    media_counting: ClassVar[MediaCounting] = "weights"

    @property
    def api(self) -> ModelApi:
        """The API that has it; no token is sent over plain HTTP, on which it could be read."""
        return ModelApi(service="Vertex AI", authentication="access_token" if self.predict_url is None else "none")

    @property
    def parameters(self) -> ParameterRules:
        """The parameters of answers that it takes."""
        if self.request_format == "chat":
            return ParameterRules(server="an endpoint of Vertex AI", sent=_CHAT_PARAMETERS, instead=USE_EFFORT)
        return ParameterRules(
            server="an endpoint with request format 'instances' or 'raw'",
            sent=SAMPLING,
            instead=dict.fromkeys(_CHAT_PARAMETERS - SAMPLING, "set `model.request_format` to 'chat'"),
        )

    @property
    def address(self) -> str:
        """Address of the endpoint, without the method."""
        location = self.endpoint.split("/")[3]
        return f"{self.base_url or f'https://{location}-aiplatform.googleapis.com'}/v1/{self.endpoint}"

    def method_url(self, *, stream: bool = False) -> str:
        """Returns the address of the method that takes the requests.

        Args:
            stream: Whether the answers are streamed.
        """
        if self.predict_url is not None:
            return self.predict_url
        if self.request_format == "instances":
            return f"{self.address}:predict"
        if self.request_format == "chat" and self.chat_route == "chat_completions":
            return f"{self.address}/chat/completions"
        return f"{self.address}:{'streamRawPredict' if stream else 'rawPredict'}"

    @property
    def max_request_bytes(self) -> int:
        """Maximum size of one request, in bytes.

        Source: cloud.google.com/vertex-ai/docs/predictions/choose-endpoint-type
        """
        is_shared = self.base_url is None or self.base_url.endswith("aiplatform.googleapis.com")
        return 1_500_000 if is_shared and self.predict_url is None else 10_000_000


class EchoModel(SpecModel):
    """A model that returns the prompt: deterministic, free, without network.

    Attributes:
        name: Name of the model in the answers and the report.
        latency_seconds: Duration of each request, in seconds.
        padded_tokens_per_second: If set, the model behaves like a static-batch server: it takes several prompts
            per request, pads them to the longest, and computes one request after the other at this speed.
    """

    type: Literal["echo"]
    name: str = "echo"
    latency_seconds: Annotated[float, Field(ge=0)] = 0.0
    padded_tokens_per_second: Annotated[float, Field(gt=0)] | None = None

    #: It has no server.
    address: ClassVar[str] = ""
    project: ClassVar[None] = None
    location: ClassVar[str] = ""
    media: ClassVar[MediaRules] = MediaRules(server="echo", by_address=frozenset({"web", "gs"}), needs_type=False)
    api: ClassVar[ModelApi] = ModelApi(service="echo", embeds=True)

    media_counting: ClassVar[None] = None
    parameters: ClassVar[ParameterRules] = ParameterRules(
        server="the model 'echo'", sent=frozenset(), ignored=frozenset(Generation.model_fields)
    )


class DistilledModel(SpecModel):
    """A classifier that a cascade has learned, alone: without a sample, a guarantee or a request to any model.

    Attributes:
        fit: Address of a fit, as the log and the report of the cascade have it; its digest is its name. The prompt
            of one that has learned from vectors is a vector: `{{ row.vector | tojson }}`.
    """

    type: Literal["distilled"]
    fit: FitUri

    #: It has no server.
    address: ClassVar[str] = ""
    project: ClassVar[None] = None
    location: ClassVar[str] = ""
    media: ClassVar[MediaRules] = MediaRules(server="a classifier", by_address=frozenset())
    api: ClassVar[ModelApi] = ModelApi(service="a classifier")
    media_counting: ClassVar[None] = None
    parameters: ClassVar[ParameterRules] = ParameterRules(
        server="a classifier", sent=frozenset(), ignored=frozenset(Generation.model_fields)
    )

    @property
    def name(self) -> str:
        """The digest of the fit."""
        return self.fit.rpartition("/")[2].removesuffix(".json")


_GEMINI_NAME = re.compile(r"((publishers/google/)?models/)?gemini-.+")


def model_data(value: Any) -> Any:
    """Returns the fields of a model that is given by its name alone, or as text; other values unchanged."""
    value = from_text(value)
    if not isinstance(value, str):
        return value
    if value == "echo":
        return {"type": "echo"}
    return {"type": "gemini", "name": value} if _GEMINI_NAME.fullmatch(value) else value


def _by_name(value: Any) -> Any:
    value = model_data(value)
    if isinstance(value, str):
        raise ValueError(
            "is not a name of Gemini, so its server is not known: write {'type': 'openai', 'name': …, "
            "'base_url': …}, or {'type': 'gemini' or 'anthropic', 'name': …}"
        )
    return value


Model = Annotated[
    GeminiModel | OpenAIModel | AnthropicModel | VertexEndpointModel | EchoModel | DistilledModel,
    Field(discriminator="type"),
    BeforeValidator(_by_name),
]
_MODEL: TypeAdapter[Model] = TypeAdapter(Model)


def with_project(model: Model) -> Model:
    """Returns the model as it is with the project that its connection may have."""
    if model.project is not None or "project" not in type(model).model_fields:
        return model
    return model.model_copy(update={"project": "of the connection"})


def has_locations(model: Model) -> bool:
    """Returns whether the same model is served in several locations of Vertex AI."""
    return "location" in type(model).model_fields


#: Classes of the models that an `llmbeam` connection can describe, by their types.
_CONNECTED = {
    get_args(kind.model_fields["type"].annotation)[0]: kind
    for kind in get_args(get_args(Model)[0])
    if hasattr(kind, "connection_fields")
}


def connected_models() -> list[Model]:
    """Returns a model of each type that an `llmbeam` connection can describe."""
    return [parse_model({"type": kind, "name": "any"}) for kind in _CONNECTED]


def connection_fields(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the fields of a model, as plain data, that an `llmbeam` connection can provide."""
    kind = _CONNECTED.get(data.get("type"))
    return () if kind is None else kind.connection_fields


def parse_model(data: Any) -> Model:
    """Builds a model from plain data.

    Raises:
        JobSpecError: Names each invalid field, its value and the expected value.
    """
    if problems := model_problems(data):
        raise JobSpecError(" ".join(map(str, problems)))
    return _MODEL.validate_python(data)


def model_problems(data: Any) -> tuple[SpecProblem, ...]:
    """Returns the problems of the data of a model, without raising."""
    try:
        _MODEL.validate_python(data)
    except ValidationError as error:
        return problems_of(error, "model", root=Model)
    return ()
