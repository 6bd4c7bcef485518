"""Base class of the platforms: the hook of one location."""

from __future__ import annotations

from typing import Generic, TypeVar

from airflow_provider_llmbeam.hooks.google.base import RegionalHook

HookT = TypeVar("HookT", bound=RegionalHook)


class HookPlatform(Generic[HookT]):
    """Sends its requests through the hook of a location; see `endpoints.platform.EndpointPlatform`.

    Args:
        hook: Hook of the location.
    """

    def __init__(self, hook: HookT) -> None:
        self._hook = hook

    @property
    def location(self) -> str:
        """Region."""
        return self._hook.location

    @property
    def project(self) -> str:
        """Google Cloud project that is billed."""
        return self._hook.project
