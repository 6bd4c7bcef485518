"""Prevents tiktoken from downloading vocabularies, which LiteLLM bundles. Imports only the standard library."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path


def use_bundled_vocabulary() -> None:
    """Sets the cache directory of tiktoken to the files in LiteLLM; does nothing if LiteLLM is not installed."""
    spec = find_spec("litellm")
    for location in (spec.submodule_search_locations or []) if spec else []:
        os.environ["TIKTOKEN_CACHE_DIR"] = str(Path(location) / "litellm_core_utils" / "tokenizers")
