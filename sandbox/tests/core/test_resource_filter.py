from __future__ import annotations

import pytest
from llmbeam_sandbox.core.resource_filter import matches


@pytest.mark.parametrize(
    ("text", "is_selected"),
    [
        ('display_name:"night-*"', True),
        ('displayName:"night-*"', True),
        ('display_name:"day-*"', False),
        ("display_name:*", True),
        ('display_name="night-*"', False),
        ("labels.team:*", True),
        ("labels.owner:*", False),
    ],
)
def test_a_colon_takes_the_beginning_of_a_value(text, is_selected) -> None:
    assert matches(text, {"displayName": "night-1", "labels": {"team": "a"}}) is is_selected
