"""Prevents tiktoken from downloading its vocabularies: LiteLLM bundles them. Standard library only."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path


def use_bundled_vocabulary() -> None:
    """Points tiktoken to the files inside LiteLLM's package; does nothing if that is not installed."""
    found = find_spec("litellm")
    for location in (found.submodule_search_locations or []) if found else []:
        os.environ["TIKTOKEN_CACHE_DIR"] = str(Path(location) / "litellm_core_utils" / "tokenizers")
