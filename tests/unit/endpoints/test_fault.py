from __future__ import annotations

import pytest

from airflow_provider_llmbeam.endpoints.fault import fault_of


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (
            14,
            "Machine type temporarily unavailable, please deploy with a different machine type or retry.",
            "stock_out",
        ),
        (
            8,
            "The region us-central1 does not have enough resources available to fulfill the request.",
            "stock_out",
        ),
        (8, "The operation was rejected.", "stock_out"),
        (13, "We are currently experiencing stockout.", "stock_out"),
        (429, "The following quota metrics exceed quota limits: custom_model_serving_nvidia_l4_gpus", "quota"),
        (403, "You do not have quota for using GPUs without zonal redundancy.", "quota"),
        (400, "Machine type 'g2-standard-12' is not supported in region europe-north1.", "no_gpu"),
        (400, "The region europe-north1 does not support nvidia-l4.", "no_gpu"),
        (403, "Permission 'aiplatform.endpoints.create' denied on resource.", "denied"),
        (401, "Request had invalid authentication credentials.", "denied"),
        (400, "Image 'vllm' not found.", "refused"),
        (404, "Model 'publishers/google/models/gemma9' is not found.", "refused"),
        (13, "Internal error encountered.", "failed"),
        (9, "Model server never became ready.", "failed"),
    ],
)
def test_message_and_code_of_a_refusal_decide_its_kind(code, message, kind):
    fault = fault_of(code, message)
    assert fault.kind == kind
    assert fault.is_location_specific is (kind in ("stock_out", "quota", "no_gpu"))


def test_a_message_becomes_a_sentence_of_one_line():
    assert fault_of(13, "It\n  failed").message == "It failed."
    assert fault_of(13, "").message == "code 13, without a message."
    assert len(fault_of(13, "x" * 5_000).message) <= 601
