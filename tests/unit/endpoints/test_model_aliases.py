"""Promotion and rollback of a version, on a registry in memory; a task may be killed between its requests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.endpoints.model_aliases import AliasState, check_alias, promote, resolve, roll_back
from airflow_provider_llmbeam.exceptions import CloudUnavailableError, JobSpecError
from airflow_provider_llmbeam.spec.fields.registered_model import RegisteredModel

MODEL = RegisteredModel("projects/acme/locations/us-central1/models/support")
VERSIONS = ("1", "2", "3")


class Registry:
    """A model with three versions.

    Args:
        aliases: Version of each alias.
        ends_before: Number of the request that changes something at which the task is killed.
    """

    def __init__(self, ends_before: int | None = None, **aliases: str) -> None:
        self.aliases = {"default": "1", **{name.replace("_", "-"): version for name, version in aliases.items()}}
        self.merged: list[tuple[str, list[str]]] = []
        self.ends_before = ends_before

    def get_registered_model(self, name: str) -> Any:
        version = name.partition("@")[2]
        version = self.aliases.get(version, version)
        return SimpleNamespace(version_id=version) if version in VERSIONS else None

    def merge_version_aliases(self, name: str, aliases: list[str]) -> None:
        if len(self.merged) == self.ends_before:
            self.ends_before = None
            raise CloudUnavailableError("Killed.")
        self.merged.append((name, aliases))
        self.aliases |= dict.fromkeys(aliases, name.partition("@")[2])


def state(version: str, previous: str | None, *, moved: bool) -> AliasState:
    return AliasState(MODEL.model, "champion", version, previous, moved)


def test_an_alias_and_a_name_without_a_version_resolve_to_a_number() -> None:
    registry = Registry(champion="3")
    assert str(resolve(registry, MODEL.at("champion"))) == f"{MODEL.model}@3"
    assert str(resolve(registry, MODEL)) == f"{MODEL.model}@1"
    assert str(resolve(registry, MODEL.at("2"))) == f"{MODEL.model}@2"
    with pytest.raises(JobSpecError, match=r"has no '.*support@golden'. Nothing was sent or billed\."):
        resolve(registry, MODEL.at("golden"))


def test_a_promotion_moves_the_alias_and_keeps_the_version_that_had_it() -> None:
    registry = Registry(champion="1")
    assert promote(registry, MODEL.at("2"), "champion") == state("2", "1", moved=True)
    assert registry.aliases == {"default": "1", "champion": "2", "champion-previous": "1"}


def test_a_second_promotion_of_a_version_changes_nothing() -> None:
    registry = Registry(champion="2", champion_previous="1")
    assert promote(registry, MODEL.at("2"), "champion") == state("2", "1", moved=False)
    assert registry.merged == []


def test_the_first_promotion_has_no_version_before() -> None:
    registry = Registry()
    assert promote(registry, MODEL.at("2"), "champion") == state("2", None, moved=True)
    with pytest.raises(JobSpecError, match=r"no other version of .* had the alias 'champion' before version 2"):
        roll_back(registry, MODEL.at("2"), "champion")
    assert registry.aliases["champion"] == "2"


def test_an_unknown_version_is_not_promoted() -> None:
    registry = Registry(champion="1")
    with pytest.raises(JobSpecError, match="support@4"):
        promote(registry, MODEL.at("4"), "champion")
    assert registry.merged == []


def test_a_rollback_returns_to_the_version_before_and_a_second_one_changes_nothing() -> None:
    registry = Registry(champion="2", champion_previous="1")
    assert roll_back(registry, MODEL.at("2"), "champion") == state("1", "1", moved=True)
    assert roll_back(registry, MODEL.at("2"), "champion") == state("1", "1", moved=False)
    with pytest.raises(JobSpecError, match="before version 1"):
        roll_back(registry, MODEL.at("1"), "champion")


def test_a_rollback_leaves_an_alias_that_another_version_has_by_now() -> None:
    registry = Registry(champion="3", champion_previous="2")
    assert roll_back(registry, MODEL.at("2"), "champion") == state("3", "2", moved=False)
    assert registry.merged == []


@given(st.sampled_from(VERSIONS), st.sampled_from(VERSIONS), st.integers(0, 2))
def test_a_promotion_that_is_killed_anywhere_is_completed_by_its_retry(
    present: str, candidate: str, ends_before: int
) -> None:
    whole, killed = Registry(champion=present), Registry(ends_before, champion=present)
    expected = promote(whole, MODEL.at(candidate), "champion")
    try:
        promote(killed, MODEL.at(candidate), "champion")
    except CloudUnavailableError:
        assert killed.aliases["champion"] == present, "the alias is moved last"
    found = promote(killed, MODEL.at(candidate), "champion")
    assert killed.aliases == whole.aliases
    assert (found.version, found.previous_version) == (expected.version, expected.previous_version)


@pytest.mark.parametrize("alias", ["", "7", "Champion", "-champion", "c" * 120, "champion_eu"])
def test_an_invalid_alias_is_refused(alias: str) -> None:
    with pytest.raises(JobSpecError, match=r"`alias`: must be 2 to 119 letters.*No alias was moved\."):
        check_alias(alias)


@pytest.mark.parametrize("alias", ["default", "champion", "c" * 119, "eu"])
def test_a_valid_alias_is_accepted(alias: str) -> None:
    check_alias(alias)
