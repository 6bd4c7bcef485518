"""What a quota sensor waits for."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.demand import Demand
from airflow_provider_llmbeam.spec.endpoint import Endpoint
from airflow_provider_llmbeam.spec.limits import Limits
from airflow_provider_llmbeam.spec.model import GeminiModel, Model, VertexEndpointModel


class QuotaQuestion(SpecModel):
    """Would `demand` finish within `window_seconds` if it started now?

    Attributes:
        model: That a job is to ask; or
        endpoint: That is to be brought up, for its accelerators.
        demand: Of the job. `None`: not known; then any room will do.
        window_seconds: In which it is to finish. `None`: in any.
        limits: Of the job. Rates in them are what its user knows of the quota.
        locations: To choose from; empty: those of the model or the endpoint.
        min_fit_ratio: Part of the demand that the window must hold. Less than 1 starts a job that another run goes
            on with: its answers are kept.
        probe_requests: Small requests sent to try, per look and location; 0 sends none.
        max_probe_usd: What all of them may cost, where the model has a list price or `limits.price`; 0 sends none.
        embeds: Whether the job asks for vectors. `None`: if the model's name says `embedding`, as those of Google
            and OpenAI do.
    """

    model: Model | None = None
    endpoint: Endpoint | None = None
    demand: Demand | None = None
    window_seconds: Annotated[float, Field(gt=0)] | None = None
    limits: Limits = Limits()
    locations: tuple[str, ...] = ()
    min_fit_ratio: Annotated[float, Field(gt=0, le=1)] = 1.0
    probe_requests: Annotated[int, Field(ge=0, le=50)] = 8
    max_probe_usd: Annotated[float, Field(ge=0)] = 0.05
    embeds: bool | None = None

    @model_validator(mode="after")
    def _about_one_thing(self) -> Self:
        if (self.model is None) == (self.endpoint is None):
            raise ValueError("needs either `model`, to be asked, or `endpoint`, to be brought up")
        if self.demand is not None and self.window_seconds is None and self.min_fit_ratio < 1:
            raise ValueError("has `min_fit_ratio`, which needs `window`: a part that fits into what?")
        return self

    @model_validator(mode="after")
    def _where_there_is_a_choice(self) -> Self:
        has_choice = self.endpoint is not None or (isinstance(self.model, GeminiModel) and self.model.project)
        if self.locations and not has_choice:
            raise ValueError(
                "has `locations`, and only a Gemini model on Vertex AI (`model.project`) and an endpoint that is "
                "to come have a choice of them"
            )
        return self

    @property
    def asks_for_vectors(self) -> bool:
        """Whether requests that are sent to try ask for a vector; an endpoint of Vertex AI is asked for texts."""
        if self.model is None or isinstance(self.model, VertexEndpointModel):
            return False
        return "embedding" in self.model.name if self.embeds is None else self.embeds

    @property
    def places(self) -> tuple[str, ...]:
        """The locations to look at; one empty name where there are none."""
        if self.locations:
            return self.locations
        match self.model:
            case GeminiModel(project=str(), location=location):
                return (location,)
            case VertexEndpointModel(endpoint=endpoint):
                return (endpoint.split("/")[3],)
        return self.endpoint.locations if self.endpoint is not None else ("",)

    def model_at(self, location: str) -> Model | None:
        """The model, asked in a location."""
        moves = isinstance(self.model, GeminiModel) and self.model.project is not None
        return self.model.model_copy(update={"location": location}) if self.model and moves else self.model

    def target_at(self, location: str) -> dict[str, Any]:
        """`{"model": …}` or `{"endpoint": …}` as plain data, to be used in a location first of all."""
        if self.endpoint is not None:
            others = tuple(place for place in self.places if place != location)
            endpoint = self.endpoint.model_copy(update={"locations": (location, *others)})
            return {"endpoint": {"type": endpoint.type, **endpoint.model_dump(mode="json", exclude_unset=True)}}
        moved = self.model_at(location)
        assert moved is not None
        return {"model": {"type": moved.type, **moved.model_dump(mode="json", exclude_unset=True)}}
