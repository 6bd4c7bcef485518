from __future__ import annotations

import sys
from pathlib import Path

import pytest

from airflow_provider_llmbeam import providers
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.providers.backends import open_backend
from airflow_provider_llmbeam.providers.batch import open_provider
from airflow_provider_llmbeam.providers.batch_format import batch_format
from airflow_provider_llmbeam.providers.probe import probe_request
from airflow_provider_llmbeam.providers.registry import part_of
from airflow_provider_llmbeam.spec import EchoModel, Embedding, GeminiModel, Generation

CLIENT = """
def open_backend(model, generation, output_schema, *, asked_tier="standard"):
    return f"backend of {model.name}"
"""


@pytest.fixture
def parrot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EchoModel:
    """A model of an API family whose folder holds a client only."""
    folder = tmp_path / "parrot"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "client.py").write_text(CLIENT)
    monkeypatch.setattr(providers, "__path__", [*providers.__path__, str(tmp_path)])
    for name in ("parrot", "parrot.client"):
        monkeypatch.setitem(sys.modules, f"{providers.__name__}.{name}", None)
        del sys.modules[f"{providers.__name__}.{name}"]
    return EchoModel.model_construct(type="parrot", name="polly")


def test_an_api_family_is_one_folder(parrot: EchoModel) -> None:
    assert open_backend(parrot, Generation(), None) == "backend of polly"
    assert probe_request(parrot) is None


def test_what_a_family_has_not_is_refused(parrot: EchoModel) -> None:
    with pytest.raises(JobSpecError, match="type 'parrot' generates texts only"):
        open_backend(parrot, Generation(), None, Embedding())
    with pytest.raises(JobSpecError, match="no provider has batch inference for a model of type 'parrot'"):
        batch_format(parrot, Generation(), None)
    with pytest.raises(JobSpecError, match="type 'parrot' have no batch inference"):
        open_provider(parrot, output_uri="")


def test_a_part_that_exists_is_found() -> None:
    assert part_of(GeminiModel(), "cached_contents") is not None
    assert part_of(EchoModel(type="echo"), "cached_contents") is None
