from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import parse_endpoint
from airflow_provider_llmbeam.spec.endpoint.gpu_memory import (
    ARCHITECTURES,
    CLOUD_RUN_LADDER,
    DEFAULT_LENGTH_TOKENS,
    GPU_MEMORY_UTILIZATION,
    LEAST_DEFAULT_SEQUENCES,
    MACHINES,
    MOST_DEFAULT_SEQUENCES,
    OVERHEAD_GB,
    VERTEX_LADDER,
    GpuMachine,
    architecture_of,
    memory_sum,
    sequence_bytes,
    smallest_machine,
)

DOCS = Path(__file__).resolve().parents[4] / "docs"
PAGES = "".join((DOCS / page).read_text() for page in ("reference/gpu-memory.md", "evidence/gpu.md"))
NAMED = {machine.machine_type: machine for machine in (*MACHINES.values(), *CLOUD_RUN_LADDER)}


def table(title: str) -> list[list[str]]:
    """Returns the rows of a table of the docs pages."""
    found = re.search(rf"## {title}\n.*?\n\n(\|.*?)\n\n", PAGES, re.DOTALL)
    assert found, title
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()[2:]]


def test_the_memory_sums_in_the_docs_match_the_code() -> None:
    rows = table("What a model takes")
    assert [row[0] for row in rows] == list(ARCHITECTURES)
    for name, weights, layers, per_token, at_2k, at_8k, at_32k in rows:
        architecture = ARCHITECTURES[name]
        assert weights == f"{architecture.parameters * 2 / 1e9:.1f} GB"
        assert layers == f"{architecture.global_layers} + {architecture.layers - architecture.global_layers}"
        assert per_token == f"{sequence_bytes(architecture, 1) / 1e6:.3f} MB"
        for length, cell in ((2048, at_2k), (8192, at_8k), (32_768, at_32k)):
            assert cell == f"{sequence_bytes(architecture, length) / 1e9:.2f} GB", (name, length)


def test_the_numbers_of_sequences_in_the_docs_match_the_code() -> None:
    rows = table("How many sequences fit")
    assert {row[0] for row in rows} >= {machine.machine_type for machine in VERTEX_LADDER[:6]} | {"nvidia-l4"}
    for machine_type, gpus, *cells in rows:
        machine = NAMED[machine_type]
        assert gpus == f"{machine.accelerator_count} × {machine.accelerator_type}"
        for name, cell in zip(ARCHITECTURES, cells, strict=True):
            total = memory_sum(ARCHITECTURES[name], machine, 1, DEFAULT_LENGTH_TOKENS)
            assert total is not None
            assert cell == (str(total.most_sequences) if total.most_sequences else "–"), (machine_type, name)


def test_the_defaults_in_the_docs_match_the_code() -> None:
    secret = "projects/p/secrets/s/versions/1"
    for name, on_vertex, sequences, on_cloud_run, there in table("Defaults"):
        garden = {"type": "vertex", "model": f"google/gemma{name[6]}@{name}-it", "accept_eula": True}
        vertex = parse_endpoint(garden | {"locations": ["us-central1"]})
        hub = {"type": "cloud_run", "model": f"google/{name}-it", "hf_token_secret": secret}
        service = parse_endpoint(hub | {"locations": ["us-central1"]})
        assert (on_vertex, sequences) == (str(vertex.machine), str(vertex.sequences))
        assert service.machine is not None
        assert (on_cloud_run, there) == (service.machine.machine_type, str(service.sequences))


def test_the_constants_in_the_docs_match_the_code() -> None:
    words = " ".join(PAGES.split())
    assert f"{GPU_MEMORY_UTILIZATION * 100:.0f} % of each GPU" in words
    assert f"{OVERHEAD_GB:g} GB per GPU" in words
    assert f"{LEAST_DEFAULT_SEQUENCES} sequences" in words
    assert f"{MOST_DEFAULT_SEQUENCES} at most" in words
    assert f"{DEFAULT_LENGTH_TOKENS:,} tokens" in words


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ("google/gemma3@gemma-3-4b-it", "gemma-3-4b"),
        ("google/gemma-3-27b-pt", "gemma-3-27b"),
        ("gs://bucket/models/gemma-3-1b-it/", "gemma-3-1b"),
        ("google/gemma-3-12b-it-qat-q4_0-gguf", None),
        ("google/gemma-4-26B-A4B-it", "gemma-4-26b-a4b"),
        ("google/gemma4@gemma-4-31b-it", "gemma-4-31b"),
        ("google/gemma-4-12B-it", None),
        ("google/gemma-3n-e4b-it", None),
        ("google/gemma-2-9b-it", None),
        ("someone/not-gemma-3-4b-it", None),
    ],
)
def test_a_model_is_known_by_its_whole_name(model: str, known: str | None) -> None:
    assert architecture_of(model) == (ARCHITECTURES[known] if known else None)


def test_one_layer_in_six_keeps_every_token() -> None:
    for name, architecture in ARCHITECTURES.items():
        assert architecture.global_layers == architecture.layers // (5 if name == "gemma-4-e2b" else 6)


#: Layers, width, width of the dense feed-forward, experts and their width: as the source in `gpu_memory`.
GEMMA4_LAYERS = {"gemma-4-26b-a4b": (2816, 2112, 128, 704), "gemma-4-31b": (5376, 21_504, 0, 0)}


@pytest.mark.parametrize("name", GEMMA4_LAYERS)
def test_the_parameters_of_gemma_4_are_those_of_its_layers_with_all_experts_and_the_encoder(name: str) -> None:
    model, (width, dense, experts, expert) = ARCHITECTURES[name], GEMMA4_LAYERS[name]
    assert model.global_layers is not None
    assert model.global_key_value_heads is not None

    def attention(head_dim: int, key_value_matrices: int) -> int:
        return width * head_dim * (2 * model.attention_heads + key_value_matrices)

    local = attention(256, 2 * model.key_value_heads) * (model.layers - model.global_layers)
    whole = attention(512, model.global_key_value_heads) * model.global_layers  # keys are values
    feed_forward = 3 * width * (dense + experts * expert) * model.layers
    encoder = 0.55e9
    total = local + whole + feed_forward + 262_144 * width + encoder
    assert model.parameters == pytest.approx(total, rel=0.002)


def test_a_model_is_checked_by_the_numbers_that_the_spec_names() -> None:
    layers = {"layers": 48, "global_layers": 8, "window_tokens": 1024, "context_tokens": 262_144}
    heads = {"attention_heads": 16, "key_value_heads": 8, "head_dim": 256}
    of_global_layers = {"global_key_value_heads": 1, "global_head_dim": 512}
    numbers = {"parameters": 12e9} | layers | heads | of_global_layers
    secret = "projects/p/secrets/s/versions/1"
    model = {"model": "google/gemma-4-12B-it", "hf_token_secret": secret}
    given: dict[str, Any] = {"type": "cloud_run", "locations": ["us-central1"]} | model
    unknown, known = parse_endpoint(given), parse_endpoint(given | {"architecture": numbers})
    assert (str(unknown.machine), unknown.sequences) == ("nvidia-l4 (1 × nvidia-l4)", None)
    assert (str(known.machine), known.sequences) == ("nvidia-rtx-pro-6000 (1 × nvidia-rtx-pro-6000)", 64)
    with pytest.raises(JobSpecError, match="needs 26"):
        parse_endpoint(given | {"architecture": numbers, "gpu_type": "nvidia-l4"})
    with pytest.raises(JobSpecError, match="has 49 `global_layers`, and 48 `layers` in all"):
        parse_endpoint(given | {"architecture": numbers | {"global_layers": 49}})


@given(st.sampled_from(sorted(ARCHITECTURES)), st.integers(1, 30_000))
def test_a_local_layer_keeps_only_its_window(name: str, length: int) -> None:
    architecture = ARCHITECTURES[name]
    every_token = sequence_bytes(architecture, 1) * length
    assert sequence_bytes(architecture, length) <= every_token
    assert (sequence_bytes(architecture, length) == every_token) == (length <= architecture.window_tokens)


def test_heads_fewer_than_the_gpus_are_kept_on_each() -> None:
    one = ARCHITECTURES["gemma-3-1b"]
    assert sequence_bytes(one, 1000, 4) == 4 * sequence_bytes(one, 1000)
    many = ARCHITECTURES["gemma-3-27b"]
    assert sequence_bytes(many, 1000, 8) == sequence_bytes(many, 1000)


@given(st.sampled_from(sorted(ARCHITECTURES)), st.integers(1, 64), st.integers(256, 32_768))
def test_the_smallest_machine_fits_and_those_before_it_do_not(name: str, sequences: int, length: int) -> None:
    architecture = ARCHITECTURES[name]
    machine = smallest_machine(architecture, VERTEX_LADDER, sequences, length)
    for other in VERTEX_LADDER:
        total = memory_sum(architecture, other, sequences, length)
        assert total is not None
        fits = total.fits and architecture.attention_heads % other.accelerator_count == 0
        assert fits == (other == machine)
        if fits:
            break


def test_an_unknown_accelerator_has_no_memory_sum() -> None:
    machine = GpuMachine("future-1", "NVIDIA_FUTURE", 1)
    assert memory_sum(ARCHITECTURES["gemma-3-27b"], machine, 64, 8192) is None
