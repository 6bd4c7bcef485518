from __future__ import annotations

from airflow_provider_llmbeam.quota.hook import base_model, project_of, situation_of
from airflow_provider_llmbeam.spec import AnthropicModel


def test_claude_on_vertex_ai_has_a_published_quota_by_the_name_of_its_publisher() -> None:
    model = AnthropicModel(type="anthropic", name="claude-haiku-4-5@20251001", project="acme")
    assert (situation_of(model), project_of(model)) == ("published_quota", "acme")
    assert base_model(model) == "anthropic-claude-haiku-4-5"


def test_the_quota_of_the_claude_api_is_not_published() -> None:
    model = AnthropicModel(type="anthropic", name="claude-haiku-5-5")
    assert (situation_of(model), project_of(model)) == ("unpublished_quota", None)
