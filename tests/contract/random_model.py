"""Writes a small model with random weights as a GGUF file, for a llama.cpp server: see CONTRIBUTING.md.

Its answers are noise, of the length and in the schema that a request asks for. It needs the packages gguf and
numpy, which are in no environment of this project.
"""

from __future__ import annotations

import sys

import gguf
import numpy as np

WIDTH, HIDDEN, HEADS, LAYERS, CONTEXT = 64, 128, 4, 2, 4096
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_model(path: str) -> None:
    """Writes a Llama of 0.1 million weights, whose tokens are the 256 bytes and the space."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("random")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    kinds = gguf.TokenType
    # The tokenizer writes a space as U+2581. As three bytes it would be read as that character, which the grammar
    # of a JSON schema does not take after the prompt.
    space = "\u2581".encode()
    tokens = [b"<unk>", b"<s>", b"</s>", *(f"<0x{byte:02X}>".encode() for byte in range(256)), space]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL, *[kinds.BYTE] * 256, kinds.NORMAL])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATE)

    random = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        is_norm = len(shape) == 1
        values = np.ones(shape) if is_norm else random.normal(scale=0.3, size=shape)
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))

    add("token_embd", len(tokens), WIDTH)
    add("output_norm", WIDTH)
    add("output", len(tokens), WIDTH)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        for name in ("attn_norm", "ffn_norm"):
            add(f"{block}.{name}", WIDTH)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"{block}.{name}", WIDTH, WIDTH)
        add(f"{block}.ffn_gate", HIDDEN, WIDTH)
        add(f"{block}.ffn_up", HIDDEN, WIDTH)
        add(f"{block}.ffn_down", WIDTH, HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write_model(sys.argv[1])
