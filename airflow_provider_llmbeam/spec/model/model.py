"""Which model answers, and how it is asked."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, field_validator

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.base import SpecModel, SpecProblem, problems_of


def _http_address(base_url: str | None) -> str | None:
    if base_url is not None and not base_url.startswith(("http://", "https://")):
        raise ValueError("must start with http:// or https://")
    return base_url.rstrip("/") if base_url else None


class GeminiModel(SpecModel):
    """Gemini through google-genai.

    With `project` it is Vertex AI and needs Google credentials; without, it is the Developer API and needs the
    environment variable `GOOGLE_API_KEY`.

    Attributes:
        name: E.g. `gemini-2.5-flash`; a tuned model is `projects/…/locations/…/endpoints/…`.
        project: Google Cloud project that is billed.
        location: Region, or `global`, which has the most room under dynamic shared quota.
        base_url: Another address of the same API, e.g. a private one.
    """

    type: Literal["gemini"] = "gemini"
    name: Annotated[str, Field(min_length=1)] = "gemini-2.5-flash"
    project: str | None = None
    location: str = "global"
    base_url: str | None = None

    _address = field_validator("base_url")(_http_address)

    @property
    def address(self) -> str:
        """Where the model is, without the method.

        Names and hosts as in google-genai 2.34 (`_transformers.t_model`, `_api_client.BaseApiClient`).
        """
        name, location = self.name, self.location
        if not self.project:
            named = name if name.startswith(("models/", "tunedModels/")) else f"models/{name}"
            return f"{self.base_url or 'https://generativelanguage.googleapis.com'}/v1beta/{named}"
        if location == "global":
            host = "aiplatform.googleapis.com"
        elif location in ("us", "eu"):
            host = f"aiplatform.{location}.rep.googleapis.com"
        else:
            host = f"{location}-aiplatform.googleapis.com"
        if "/" not in name:
            name = f"publishers/google/models/{name}"
        elif not name.startswith(("projects/", "publishers/", "models/")):
            publisher, _, name = name.partition("/")
            name = f"publishers/{publisher}/models/{name}"
        if not name.startswith("projects/"):
            name = f"projects/{self.project}/locations/{location}/{name}"
        return f"{self.base_url or f'https://{host}'}/v1beta1/{name}"


class OpenAIModel(SpecModel):
    """Any server that speaks the OpenAI API: vLLM, Ollama, llama.cpp, or a hosted one.

    Attributes:
        name: The model as the server calls it.
        base_url: Address up to and with `/v1`.
        api_key_env: Environment variable that holds the key. Unset, none is sent: a server of one's own
            rarely asks for one.
        id_token_audience: Address of the Cloud Run service that the server is: each request carries an ID token
            for it, of a service account that may invoke the service, and no key.
    """

    type: Literal["openai"]
    name: Annotated[str, Field(min_length=1)]
    base_url: str = "https://api.openai.com/v1"
    api_key_env: str = "OPENAI_API_KEY"
    id_token_audience: str | None = None

    _address = field_validator("base_url", "id_token_audience")(_http_address)


class VertexEndpointModel(SpecModel):
    """A model that is deployed to an endpoint of Vertex AI.

    Attributes:
        name: What the model is, e.g. `google/gemma-3-4b-it`. It names the answers and is not sent: an
            endpoint has one model.
        endpoint: `projects/…/locations/…/endpoints/…`.
        base_url: `https://` and the endpoint's dedicated DNS, where it has one. `None`: the address that all
            endpoints of its location share.
        request_format: `chat` sends OpenAI's chat completions, which vLLM and TGI of Model Garden speak, and which
            alone carry images, output schemas and streams; `instances` several prompts per `:predict`; `raw` one
            prompt per `:rawPredict`, as vLLM's own `/generate` takes it.
    """

    type: Literal["vertex_endpoint"]
    name: Annotated[str, Field(min_length=1)]
    endpoint: Annotated[str, Field(pattern=r"^projects/[^/]+/locations/[a-z0-9-]+/endpoints/[^/]+$")]
    base_url: str | None = None
    request_format: Literal["chat", "instances", "raw"] = "chat"

    _address = field_validator("base_url")(_http_address)

    @property
    def address(self) -> str:
        """Where the endpoint is, without the method."""
        location = self.endpoint.split("/")[3]
        return f"{self.base_url or f'https://{location}-aiplatform.googleapis.com'}/v1/{self.endpoint}"


class EchoModel(SpecModel):
    """Answers with the prompt itself: deterministic, free, no network.

    Attributes:
        latency_seconds: How long each answer takes.
        padded_tokens_per_second: Given, it behaves like a static-batch server: it takes several prompts per
            request, pads them to the longest, and computes one request after the other at this speed.
    """

    type: Literal["echo"]
    name: str = "echo"
    latency_seconds: Annotated[float, Field(ge=0)] = 0.0
    padded_tokens_per_second: Annotated[float, Field(gt=0)] | None = None


Model = Annotated[GeminiModel | OpenAIModel | VertexEndpointModel | EchoModel, Field(discriminator="type")]
_MODEL: TypeAdapter[Model] = TypeAdapter(Model)


def parse_model(data: Any) -> Model:
    """Builds a model from plain data.

    Raises:
        JobSpecError: Names each field that is wrong, what it got and what it wants.
    """
    if problems := model_problems(data):
        raise JobSpecError(f"{' '.join(map(str, problems))} Nothing was sent or billed.")
    return _MODEL.validate_python(data)


def model_problems(data: Any) -> tuple[SpecProblem, ...]:
    """Lists what keeps data from being a model, without raising."""
    try:
        _MODEL.validate_python(data)
    except ValidationError as error:
        return problems_of(error, "model")
    return ()


class Generation(SpecModel):
    """Parameters of the answer. `None` leaves a choice to the server.

    Attributes:
        max_output_tokens: The answer is cut here; on thinking models thoughts count too.
        temperature: 0 is the most repeatable.
        top_p: Nucleus sampling.
        seed: For repeatable sampling, where the server has it.
        stop_sequences: Texts that end the answer.
        stream: Receive the answer as it is written: the time to its first token is recorded, and an answer
            that stalls is given up before `limits.request_timeout_seconds`. The text is the same.
        stream_idle_timeout_seconds: Longest silence within a streamed answer.
        thinking_budget_tokens: Gemini: tokens for thoughts. 0 turns thinking off on Flash models, -1 lets the
            model decide. Other servers ignore it.
    """

    max_output_tokens: Annotated[int, Field(ge=1)] = 1024
    temperature: Annotated[float, Field(ge=0, le=2)] | None = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: int | None = None
    stop_sequences: tuple[str, ...] = ()
    thinking_budget_tokens: Annotated[int, Field(ge=-1)] | None = None
    stream: bool = False
    stream_idle_timeout_seconds: Annotated[float, Field(gt=0)] = 30.0


class Embedding(SpecModel):
    """Parameters of the vectors of an embedding job. `None` leaves a choice to the server.

    Attributes:
        dimensions: Length of each vector, for models that can shorten theirs. A vector of any other length is no
            answer.
        task_type: Gemini: what the vectors are for, e.g. `RETRIEVAL_DOCUMENT` or `RETRIEVAL_QUERY`.
    """

    dimensions: Annotated[int, Field(ge=1)] | None = None
    task_type: Annotated[str, Field(pattern=r"^[A-Z][A-Z_]*$")] | None = None
