from __future__ import annotations

from airflow_provider_llmbeam.pipeline.launch.runner import beam_arguments


def test_an_option_becomes_an_argument_with_its_value() -> None:
    assert beam_arguments({"disk_size_gb": 50, "region": "europe-west1"}) == [
        "--disk_size_gb=50",
        "--region=europe-west1",
    ]


def test_a_switch_becomes_a_flag_or_is_left_out() -> None:
    assert beam_arguments({"no_use_public_ips": True, "streaming": False, "network": None}) == [
        "--no_use_public_ips"
    ]


def test_each_item_of_a_list_becomes_an_argument() -> None:
    expected = ["--experiments=a", "--experiments=b", "--labels=k=v"]
    assert beam_arguments({"experiments": ["a", "b"], "labels": ("k=v",), "service_options": []}) == expected


def test_the_numbers_0_and_1_are_values() -> None:
    assert beam_arguments({"num_workers": 1, "offset": 0}) == ["--num_workers=1", "--offset=0"]
