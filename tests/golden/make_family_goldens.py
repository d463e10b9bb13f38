#!/usr/bin/env python3
"""Makes the goldens of tiny random models of Gemma, Phi-3 and the families with experts.

Beside make_goldens.py, whose venv it needs. Models are seeded by their names:
  ref/bin/python tests/golden/make_family_goldens.py [NAME ...]
"""

import json
import math
import shutil
import sys
import zlib

import torch
from transformers import (AutoModelForCausalLM, Gemma2Config, Gemma3TextConfig, MixtralConfig,
                          Phi3Config, Qwen2MoeConfig, Qwen3MoeConfig)

from make_goldens import HERE, golden_of, write

SIZES = {"vocab_size": 128, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1,
         "eos_token_id": 2}
PLAIN = (1, 2, 17, 100)
# Of an original length of 8: below it, at it and behind it; all answers end behind it.
LONG = (9, 12, 17, 100, 1, 5, 7, 8)
# Of 60: answers that end before it, at it and right behind it, that cross it in the middle, with
# their first token, and before it.
CROSSING = (2, 13, 14, 30, 59, 60, 61)


def longrope(half, original, partial=None):
    rope = {"rope_type": "longrope", "rope_theta": 10000.0,
            "original_max_position_embeddings": original,
            "short_factor": [1 + i / 4 for i in range(half)],
            "long_factor": [1.08 * 1.4**i for i in range(half)]}
    return rope | ({"partial_rotary_factor": partial} if partial else {})


# name: (config, dtype on disk, shard size, form of config.json, lengths of prompts)
MODELS = {
    "gemma2": (Gemma2Config(
        **SIZES, num_hidden_layers=3, hidden_size=48, intermediate_size=80, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, query_pre_attn_scalar=24, sliding_window=13,
        attn_logit_softcapping=2.5, final_logit_softcapping=6.0), torch.bfloat16, None, "old",
        PLAIN),
    # Heads of 256, a window shorter than any block, no softcaps, an output layer of its own.
    "gemma2-wide-heads": (Gemma2Config(
        **SIZES, num_hidden_layers=2, hidden_size=24, intermediate_size=56, num_attention_heads=2,
        num_key_value_heads=1, head_dim=256, query_pre_attn_scalar=256, sliding_window=5,
        attn_logit_softcapping=None, final_logit_softcapping=None, tie_word_embeddings=False),
        torch.float16, "60KB", "new", PLAIN),
    "gemma3": (Gemma3TextConfig(
        **SIZES, num_hidden_layers=7, hidden_size=32, intermediate_size=48, num_attention_heads=4,
        num_key_value_heads=1, head_dim=24, query_pre_attn_scalar=20, sliding_window=9),
        torch.float32, None, "old", PLAIN),
    # Windows in other layers than every sixth, position interpolation of the others.
    "gemma3-linear-shards": (Gemma3TextConfig(
        **SIZES, num_hidden_layers=4, hidden_size=40, intermediate_size=72, num_attention_heads=2,
        num_key_value_heads=2, head_dim=32, query_pre_attn_scalar=32, sliding_window=17,
        final_logit_softcapping=8.0, attention_bias=True,
        layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 500000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0}}),
        torch.bfloat16, "20KB", "new", PLAIN),
    "phi3-window": (Phi3Config(
        **SIZES, num_hidden_layers=2, hidden_size=48, intermediate_size=80, num_attention_heads=4,
        sliding_window=11, original_max_position_embeddings=256), torch.float16, None, "old",
        PLAIN),
    "phi3-longrope-shards": (Phi3Config(
        **SIZES, num_hidden_layers=2, hidden_size=64, intermediate_size=72, num_attention_heads=4,
        num_key_value_heads=4, original_max_position_embeddings=8,
        rope_parameters=longrope(8, 8)), torch.bfloat16, "30KB", "old", LONG),
    # Answers become longer than the original length, which is no whole number of blocks.
    "phi3-longrope-crossing": (Phi3Config(
        **SIZES, num_hidden_layers=2, hidden_size=48, intermediate_size=56, num_attention_heads=4,
        num_key_value_heads=2, original_max_position_embeddings=60, tie_word_embeddings=True,
        rope_parameters=longrope(6, 60)), torch.float32, None, "new", CROSSING),
    # The short factors, as nothing is longer than the original length.
    "phi3-partial": (Phi3Config(
        **SIZES, num_hidden_layers=2, hidden_size=64, intermediate_size=56, num_attention_heads=4,
        num_key_value_heads=2, original_max_position_embeddings=256, tie_word_embeddings=True,
        rope_parameters=longrope(6, 256, 0.75)), torch.float32, None, "new", PLAIN),
    "mixtral": (MixtralConfig(
        **SIZES, num_hidden_layers=2, hidden_size=40, intermediate_size=64, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=6, num_experts_per_tok=2), torch.bfloat16, None,
        "old", PLAIN),
    "mixtral-window-shards": (MixtralConfig(
        **SIZES, num_hidden_layers=2, hidden_size=32, intermediate_size=40, num_attention_heads=4,
        num_key_value_heads=4, num_local_experts=5, num_experts_per_tok=3, sliding_window=7,
        head_dim=12), torch.float16, "20KB", "new", PLAIN),
    "qwen3-moe": (Qwen3MoeConfig(
        **SIZES, num_hidden_layers=4, hidden_size=40, intermediate_size=64, num_attention_heads=4,
        num_key_value_heads=2, head_dim=24, num_experts=8, num_experts_per_tok=3,
        moe_intermediate_size=32, norm_topk_prob=True, decoder_sparse_step=2, mlp_only_layers=[3],
        tie_word_embeddings=True), torch.bfloat16, None, "old", PLAIN),
    "qwen3-moe-plain": (Qwen3MoeConfig(
        **SIZES, num_hidden_layers=2, hidden_size=32, intermediate_size=48, num_attention_heads=4,
        num_key_value_heads=1, head_dim=16, num_experts=5, num_experts_per_tok=5,
        moe_intermediate_size=24, use_sliding_window=True, sliding_window=19,
        attention_bias=True), torch.float32, None, "new", PLAIN),
    "qwen2-moe": (Qwen2MoeConfig(
        **SIZES, num_hidden_layers=3, hidden_size=48, intermediate_size=64, num_attention_heads=4,
        num_key_value_heads=2, num_experts=7, num_experts_per_tok=2, moe_intermediate_size=32,
        shared_expert_intermediate_size=56, mlp_only_layers=[1]), torch.float32, None, "old",
        PLAIN),
    "qwen2-moe-window-shards": (Qwen2MoeConfig(
        **SIZES, num_hidden_layers=4, hidden_size=32, intermediate_size=48, num_attention_heads=2,
        num_key_value_heads=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=40,
        shared_expert_intermediate_size=32, norm_topk_prob=True, use_sliding_window=True,
        sliding_window=11, max_window_layers=3, qkv_bias=False), torch.bfloat16, "30KB", "new",
        PLAIN),
}


def randomize(model):
    """Weights large enough that every feature moves the logits and margins are not ties."""
    one_plus = model.config.model_type.startswith("gemma")
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("bias"):
                p.normal_(0, 0.3)
            elif "norm" in name:
                p.normal_(0 if one_plus else 1, 0.2)
            elif "embed" in name:
                p.normal_(0, 0.3 if model.config.tie_word_embeddings else 1)
            else:
                p.normal_(0, 1.3 / math.sqrt(p.shape[-1]))


def old_form(config, keep_layer_types):
    """The names that transformers 4 wrote."""
    config = dict(config)
    rope = dict(config.pop("rope_parameters"))
    if "full_attention" in rope:
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = dict(rope["full_attention"])
        config["sliding_window_pattern"] = 6
    config["rope_theta"] = rope.pop("rope_theta")
    partial = rope.pop("partial_rotary_factor", 1.0)
    if partial != 1.0:
        config["partial_rotary_factor"] = partial
    kind = rope.pop("rope_type")
    rope.pop("original_max_position_embeddings", None)
    config["rope_scaling"] = None if kind == "default" else {"type": kind} | rope
    config["torch_dtype"] = config.pop("dtype")
    if not keep_layer_types:
        config.pop("layer_types", None)
    return config


# Whose layers no pattern tells.
NO_PATTERN = {"gemma3-linear-shards"}


def make(name):
    config, dtype, shard_size, form, lengths = MODELS[name]
    seed = zlib.crc32(name.encode())
    folder = HERE / "models" / name
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    randomize(model)
    options = {"max_shard_size": shard_size} if shard_size else {}
    model.to(dtype).save_pretrained(folder, **options)
    (folder / "generation_config.json").unlink()
    forms = {"new": json.loads((folder / "config.json").read_text())}
    forms["old"] = old_form(forms["new"], name in NO_PATTERN)
    other = "old" if form == "new" else "new"
    (folder / f"config.{other}.json").write_text(json.dumps(forms[other], indent=1) + "\n")
    (folder / "config.json").write_text(json.dumps(forms[form], indent=1) + "\n")
    generator = torch.Generator().manual_seed(seed)
    prompts = []
    for length in lengths:
        ids = torch.randint(3, config.vocab_size, (length,), generator=generator).tolist()
        prompts.append((f"{length} random ids", None, ids))
    write(folder / "golden.json", golden_of(folder, prompts))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for model_name in sys.argv[1:] or MODELS:
        make(model_name)
        print(model_name)
