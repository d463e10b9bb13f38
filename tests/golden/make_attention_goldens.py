#!/usr/bin/env python3
"""Makes attention.json: attention by torch and by the eager code of transformers, f32, CPU.

Not part of the build or the tests. It needs torch and transformers 5, as make_goldens.py does:
  ref/bin/python tests/golden/make_attention_goldens.py
Inputs are not stored: both sides compute them by `hashed`. The formats are in README.md.
"""

import json
import pathlib
import types

import torch
from transformers import masking_utils
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama

HEADS, KV_HEADS, DIM = 4, 2, 16
SEQUENCES = [(5, 18), (1, 37), (6, 6), (2, 33)]  # (queries, keys)
SEED = 1


def hashed(seed, shape):
    """Values in [-1, 1) that are exact in f32."""
    size = 1
    for n in shape:
        size *= n
    out = []
    for i in range(size):
        x = (i + seed * 7919) * 2654435761 % 2**32
        x = (x ^ (x >> 15)) * 2246822519 % 2**32
        x ^= x >> 13
        out.append((x >> 8) / 2**23 - 1)
    return torch.tensor(out, dtype=torch.float32).reshape(shape)


def mask_of(queries, keys, function):
    """[1, 1, queries, keys]: 0 where `function` of transformers sees the key, else -inf."""
    out = torch.full((1, 1, queries, keys), float("-inf"))
    for i in range(queries):
        for j in range(keys):
            q, k = torch.tensor(i + keys - queries), torch.tensor(j)
            if function(0, 0, q, k):
                out[0, 0, i, j] = 0
    return out


def module(sinks=None):
    return types.SimpleNamespace(num_key_value_groups=HEADS // KV_HEADS, head_dim=DIM,
                                 training=False, sinks=sinks)


# Each takes q [1, H, n, D], k and v [1, Hk, m, D], returns [1, n, H, D].

def sdpa(function):
    def run(q, k, v):
        mask = mask_of(q.shape[2], k.shape[2], function)
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask,
                                                               enable_gqa=True)
        return out.transpose(1, 2)
    return run


def gemma2(softcap, window):
    function = masking_utils.sliding_window_causal_mask_function(window)
    def run(q, k, v):
        mask = mask_of(q.shape[2], k.shape[2], function)
        return modeling_gemma2.eager_attention_forward(module(), q, k, v, mask, scaling=0.5,
                                                       softcap=softcap)[0]
    return run


def gpt_oss(q, k, v):
    sinks = hashed(SEED + 4, (HEADS,)) * 4
    mask = mask_of(q.shape[2], k.shape[2], masking_utils.causal_mask_function)
    return modeling_gpt_oss.eager_attention_forward(module(sinks), q, k, v, mask, DIM**-0.5)[0]


def bloom_alibi(q, k, v):
    keys = k.shape[2]
    alibi = build_alibi_tensor(torch.ones(1, keys), HEADS, torch.float32).view(1, HEADS, 1, keys)
    mask = mask_of(q.shape[2], keys, masking_utils.causal_mask_function) + alibi
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return out.transpose(1, 2)


def through(dtype, scale):
    """K and V as an fp8 cache returns them."""
    run_exact = sdpa(masking_utils.causal_mask_function)
    def run(q, k, v):
        stored = [(x / scale).to(dtype).float() * scale for x in (k, v)]
        return run_exact(q, *stored)
    return run


def rotary(interleaved):
    """Positions 0, 1, ...: every key is new."""
    exact = sdpa(masking_utils.causal_mask_function)
    def run(q, k, v):
        inverse = 10000.0 ** (-torch.arange(0, DIM, 2).double() / DIM)
        angles = torch.arange(k.shape[2]).double()[:, None] * inverse
        cos, sin = angles.cos().float(), angles.sin().float()
        if interleaved:
            turn = lambda x: modeling_gptj.apply_rotary_pos_emb(
                x.transpose(1, 2), sin[None], cos[None]).transpose(1, 2)
            return exact(turn(q), turn(k), v)
        cos, sin = torch.cat([cos, cos], -1)[None], torch.cat([sin, sin], -1)[None]
        q, k = modeling_llama.apply_rotary_pos_emb(q, k, cos, sin)
        return exact(q, k, v)
    return run


def outputs(run, sequences):
    q = hashed(SEED, (sum(n for n, _ in sequences), HEADS, DIM))
    k, v = [hashed(SEED + i, (sum(m for _, m in sequences), KV_HEADS, DIM)) for i in (1, 2)]
    out, row, key = [], 0, 0
    for queries, keys in sequences:
        one = [x.transpose(0, 1)[None] for x in (q[row:row + queries], k[key:key + keys],
                                                 v[key:key + keys])]
        out += run(*one).reshape(-1).tolist()
        row, key = row + queries, key + keys
    return [round(x, 6) for x in out]


def main():
    causal = masking_utils.causal_mask_function
    chunked = masking_utils.and_masks(
        masking_utils.chunked_overlay(8, torch.zeros(1, dtype=torch.int64)), causal)
    new = [(7, 7), (7, 7)]
    cases = {
        "causal": (sdpa(causal), SEQUENCES),
        "encoder": (sdpa(masking_utils.bidirectional_mask_function), SEQUENCES),
        "chunk 8": (sdpa(chunked), SEQUENCES),
        "window 6, softcap 2, scale 0.5": (gemma2(2.0, 6), SEQUENCES),
        "sinks": (gpt_oss, SEQUENCES),
        "alibi": (bloom_alibi, SEQUENCES),
        "e4m3 / 0.25": (through(torch.float8_e4m3fn, 0.25), SEQUENCES),
        "e5m2 / 0.5": (through(torch.float8_e5m2, 0.5), SEQUENCES),
        "rotary halves": (rotary(False), new),
        "rotary interleaved": (rotary(True), new),
    }
    with torch.no_grad():
        golden = {name: outputs(*case) for name, case in cases.items()}
    path = pathlib.Path(__file__).resolve().parent / "attention.json"
    path.write_text("{\n" + ",\n".join(f"{json.dumps(n)}: {json.dumps(v)}"
                                       for n, v in golden.items()) + "\n}\n")


if __name__ == "__main__":
    main()
