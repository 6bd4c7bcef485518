"""The question that a quota sensor asks."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, ValidationInfo, model_validator

from airflow_provider_llmbeam.spec.base import FieldFaultError, SpecModel, may_have_project
from airflow_provider_llmbeam.spec.demand import Demand
from airflow_provider_llmbeam.spec.endpoint import Endpoint
from airflow_provider_llmbeam.spec.limits import Limits
from airflow_provider_llmbeam.spec.model import Model, VertexEndpointModel
from airflow_provider_llmbeam.spec.model.model import has_locations


class QuotaQuestion(SpecModel):
    """Would `demand` finish within `window_seconds` if it started now?

    Attributes:
        model: Model of the job; exactly one of `model` and `endpoint` is required.
        endpoint: Endpoint to be provisioned; its accelerators are checked.
        demand: Demand of the job. `None`: not known; any headroom is enough.
        window_seconds: Time in which the job must finish, in seconds. `None`: no limit.
        limits: Limits of the job. Its rates are the quota known to the user.
        locations: Locations to choose from; empty: those of the model or the endpoint.
        min_fit_ratio: Fraction of the demand that must fit the window. With less than 1 the job starts although a
            later run has to finish it: its answers are kept.
        probe_requests: Number of small live requests per poll and location; 0 sends none.
        max_probe_usd: Maximum cost of all of them, in US dollars, for models with a list price or `limits.price`;
            0 sends none.
        embeds: Whether the job requests vectors. `None`: if the name of the model contains `embedding`, as those
            of Google and OpenAI do.
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
            raise FieldFaultError(
                "model", "exactly one of `model` and `endpoint`, an endpoint to be provisioned, is needed"
            )
        if self.demand is not None and self.window_seconds is None and self.min_fit_ratio < 1:
            raise FieldFaultError("window", "this field is needed with `min_fit_ratio`", None)
        return self

    @model_validator(mode="after")
    def _where_there_is_a_choice(self, info: ValidationInfo) -> Self:
        model = self.model
        is_on_vertex_ai = model is not None and has_locations(model) and may_have_project(model.project, info)
        has_choice = self.endpoint is not None or is_on_vertex_ai
        if self.locations and not has_choice:
            raise FieldFaultError(
                "locations",
                "only a model on Vertex AI (`model.project`) and an endpoint to be provisioned can choose from "
                "several",
                list(self.locations),
            )
        return self

    @property
    def asks_for_vectors(self) -> bool:
        """Whether probe requests ask for vectors; an endpoint of Vertex AI is always asked for texts."""
        if self.model is None or isinstance(self.model, VertexEndpointModel):
            return False
        return "embedding" in self.model.name if self.embeds is None else self.embeds

    @property
    def places(self) -> tuple[str, ...]:
        """The locations to check; one empty name for a model without a location."""
        if self.locations:
            return self.locations
        if self.model is not None and self.model.project:
            return (self.model.location,)
        return self.endpoint.locations if self.endpoint is not None else ("",)

    def model_at(self, location: str) -> Model | None:
        """Returns the model in a location."""
        moves = self.model is not None and has_locations(self.model) and self.model.project is not None
        return self.model.model_copy(update={"location": location}) if self.model and moves else self.model

    def target_at(self, location: str) -> dict[str, Any]:
        """Returns `{"model": …}` or `{"endpoint": …}` as plain data, with this location first."""
        if self.endpoint is not None:
            others = tuple(place for place in self.places if place != location)
            endpoint = self.endpoint.model_copy(update={"locations": (location, *others)})
            return {"endpoint": {"type": endpoint.type, **endpoint.model_dump(mode="json", exclude_unset=True)}}
        moved = self.model_at(location)
        assert moved is not None
        return {"model": {"type": moved.type, **moved.model_dump(mode="json", exclude_unset=True)}}
