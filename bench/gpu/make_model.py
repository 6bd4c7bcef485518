"""Saves a Gemma 3 of random weights and a tokenizer of bytes; run by the interpreter that has `transformers`.

Arguments: the directory, the size, and a text whose words become tokens.
"""

import sys
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, PreTrainedTokenizerFast

#: `text_config` of each model's config.json on the Hugging Face hub; `tiny` is for a test on the CPU.
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "sliding_window": 64,
    },
    "1b": {
        "vocab_size": 262_144,
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "num_hidden_layers": 26,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "sliding_window": 512,
    },
    "4b": {
        "vocab_size": 262_208,
        "hidden_size": 2560,
        "intermediate_size": 10_240,
        "num_hidden_layers": 34,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 1024,
    },
}


def main(directory: str, size: str, text: str) -> None:
    """Saves the model."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    inner = Tokenizer(models.BPE(unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        [text] * 10, trainers.BpeTrainer(vocab_size=512, special_tokens=special, initial_alphabet=alphabet)
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", unk_token="<unk>"
    )
    tokenizer.chat_template = (
        "{{ bos_token }}{% for message in messages %}<start_of_turn>{{ message['role'] }}\n"
        "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
        "{% for part in message['content'] %}{{ part.get('text', '') }}{% endfor %}{% endif %}"
        "<end_of_turn>\n{% endfor %}<start_of_turn>model\n"
    )
    tokenizer.save_pretrained(directory)
    config = Gemma3TextConfig(
        **{"vocab_size": len(tokenizer), **SIZES[size]},
        max_position_embeddings=32_768,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
    )
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    model = Gemma3ForCausalLM(config)
    with torch.no_grad():  # answers are of the tokenizer's tokens, and never end early
        embeddings = model.get_input_embeddings().weight
        embeddings[: len(special)] = 0
        embeddings[len(tokenizer) :] = 0
    model.save_pretrained(directory)


if __name__ == "__main__":
    main(*sys.argv[1:])
