#!/usr/bin/env python3
"""Makes the random models of OPT, GPT-NeoX and BLOOM and what transformers answers of them.

Needs what make_goldens.py does. A model's numbers depend on its name alone, so that each can be
made by itself:
  ref/bin/python tests/golden/make_opt_neox_bloom_goldens.py [NAME ...]
"""

import sys
import zlib

import torch
from make_goldens import SIZES, random_model
from transformers import BloomConfig, GPTNeoXConfig, OPTConfig

# As in make_goldens.py.
MODELS = {
    "opt": (OPTConfig(
        **SIZES, hidden_size=40, ffn_dim=56, num_attention_heads=5), torch.bfloat16, None, "old"),
    # As 350m, and its output layer apart.
    "opt-post-norm": (OPTConfig(
        **SIZES, hidden_size=48, ffn_dim=72, num_attention_heads=3, do_layer_norm_before=False,
        word_embed_proj_dim=20, tie_word_embeddings=False), torch.float16, "20KB", "new"),
    # Without biases and the last norm; an embedding larger than the hidden states.
    "opt-no-final-norm": (OPTConfig(
        **SIZES, hidden_size=32, ffn_dim=44, num_attention_heads=2, word_embed_proj_dim=52,
        enable_bias=False, activation_function="gelu", _remove_final_layer_norm=True),
        torch.float32, None, "old"),
    "opt-odd-heads": (OPTConfig(
        **SIZES, hidden_size=35, ffn_dim=51, num_attention_heads=5, activation_function="gelu_new"),
        torch.float32, None, "new"),
    "neox": (GPTNeoXConfig(
        **SIZES, hidden_size=64, intermediate_size=88, num_attention_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0,
                         "partial_rotary_factor": 0.25}), torch.float16, None, "old"),
    "neox-sequential-shards": (GPTNeoXConfig(
        **SIZES, hidden_size=72, intermediate_size=104, num_attention_heads=3,
        use_parallel_residual=False, attention_bias=False, tie_word_embeddings=True,
        hidden_act="gelu_fast", rope_parameters={
            "rope_type": "linear", "rope_theta": 20000.0, "factor": 2.0,
            "partial_rotary_factor": 0.6}), torch.bfloat16, "30KB", "new"),
    # 5 of 10 elements: three pairs, of exponents by fifths.
    "neox-odd-rotary": (GPTNeoXConfig(
        **SIZES, hidden_size=30, intermediate_size=44, num_attention_heads=3,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0,
                         "partial_rotary_factor": 0.5}), torch.bfloat16, None, "old"),
    "bloom": (BloomConfig(
        **SIZES, hidden_size=48, num_attention_heads=6), torch.bfloat16, None, "old"),
    # The residual goes on from what the norms give; shards.
    "bloom-normed-residual": (BloomConfig(
        **SIZES, hidden_size=32, num_attention_heads=4, tie_word_embeddings=False,
        apply_residual_connection_post_layernorm=True), torch.float32, "30KB", "new"),
}


def old_form(config):
    """The names that transformers 4 wrote, and what else lies on the hub."""
    config = dict(config)
    config["torch_dtype"] = config.pop("dtype")
    if config["model_type"] == "gpt_neox":
        rope = dict(config.pop("rope_parameters"))
        config["rotary_emb_base"] = rope.pop("rope_theta")
        config["rotary_pct"] = rope.pop("partial_rotary_factor")
        kind = rope.pop("rope_type")
        config["rope_scaling"] = None if kind == "default" else {"type": kind} | rope
    if config["model_type"] == "bloom":
        config["n_embed"] = config.pop("hidden_size")
        config["num_attention_heads"] = config.pop("n_head")
        del config["max_position_embeddings"]
        config |= {"n_inner": None, "offset_alibi": 100, "seq_length": 256, "skip_bias_add": True,
                   "skip_bias_add_qkv": False, "attention_softmax_in_fp32": True,
                   "bias_dropout_fusion": True, "masked_softmax_fusion": True}
    return config


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or MODELS:
        seed = zlib.crc32(name.encode())
        random_model(name, MODELS[name], seed, torch.Generator().manual_seed(seed), old_form)
