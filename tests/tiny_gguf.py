"""A tiny Llama as a GGUF file, written as llama.cpp's converter writes one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch
from tokenizers import Tokenizer

from . import tiny
from .bpe import trained

SENTENCES = ["the rain falls on the quiet lake", "a small bird sings in the rain 🌧 – où?"]
END = "<|end|>"
HEADS, KV_HEADS = 4, 2
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.layers": "blk",
}


def model(vocab_size: int) -> Any:
    return tiny.build(tiny.config("llama", vocab_size=vocab_size, eos_token_id=0))


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of a query or key projection in the order in which llama.cpp rotates them: pairs side by side."""
    size = weight.shape[0] // heads
    return weight.reshape(heads, 2, size // 2, -1).transpose(1, 2).reshape(weight.shape)


def write(file: Path) -> tuple[Any, Tokenizer]:
    """Write it; returns the model and the tokenizer that are in it."""
    tokenizer = trained(SENTENCES, 290, [END])
    made = model(tokenizer.get_vocab_size())
    config = made.config
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.hidden_size // HEADS)
    writer.add_vocab_size(config.vocab_size)
    _write_tokenizer(writer, tokenizer)
    for name, weight in made.state_dict().items():
        if "q_proj" in name or "k_proj" in name:
            weight = interleaved(weight, HEADS if "q_proj" in name else KV_HEADS)
        for ours, theirs in NAMES.items():
            name = name.replace(ours, theirs)
        writer.add_tensor(name, weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return made, tokenizer


def _write_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    import json

    vocabulary = tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.get)
    kinds = [gguf.TokenType.CONTROL if t == END else gguf.TokenType.NORMAL for t in tokens]
    merges = [" ".join(m) for m in json.loads(tokenizer.to_str())["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
