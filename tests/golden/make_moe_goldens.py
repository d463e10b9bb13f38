#!/usr/bin/env python3
"""Makes moe.json: routers and whole layers of experts by the eager code of transformers, f32, CPU.

Not part of the build or the tests. It needs torch and transformers 5, as make_goldens.py does:
  ref/bin/python tests/golden/make_moe_goldens.py
Inputs and weights are not stored: both sides compute them by `hashed`. The formats are in README.md.
"""

import torch
from transformers import (DeepseekV2Config, DeepseekV3Config, GptOssConfig, MixtralConfig,
                          OlmoeConfig, Qwen3MoeConfig)
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from make_attention_goldens import hashed
from make_goldens import HERE, rounded, write

TOKENS, HIDDEN, FFN = 20, 32, 24
INPUT, ROUTER, GATE_UP, DOWN, BIAS, SHARED_GATE, SHARED_UP, SHARED_DOWN = range(1, 9)


def filled(parameter, seed, scale):
    with torch.no_grad():
        parameter.copy_(hashed(seed, parameter.shape) * scale)


def routing(router, x):
    """[T, k] ids by descending weight, and the weights."""
    _, weights, ids = router(x)
    if weights.shape != ids.shape:
        weights = weights.gather(1, ids)
    order = torch.argsort(weights, dim=1, descending=True, stable=True)
    return {"ids": ids.gather(1, order).flatten().tolist(),
            "weights": [float(f"{w:.8g}") for w in weights.gather(1, order).flatten().tolist()]}


@torch.no_grad()
def block(cls, config, **options):
    config = config(hidden_size=HIDDEN, intermediate_size=FFN, moe_intermediate_size=FFN,
                    hidden_act="silu", **options)
    config._experts_implementation = "eager"
    layer = cls(config).float().eval()
    x = hashed(INPUT, (TOKENS, HIDDEN))
    filled(layer.gate.weight, ROUTER, 1)
    filled(layer.experts.gate_up_proj, GATE_UP, 0.5)
    filled(layer.experts.down_proj, DOWN, 0.5)
    if hasattr(layer.gate, "e_score_correction_bias"):
        filled(layer.gate.e_score_correction_bias, BIAS, 0.25)
    if hasattr(layer, "shared_experts"):
        filled(layer.shared_experts.gate_proj.weight, SHARED_GATE, 0.5)
        filled(layer.shared_experts.up_proj.weight, SHARED_UP, 0.5)
        filled(layer.shared_experts.down_proj.weight, SHARED_DOWN, 0.5)
    return routing(layer.gate, x) | {"out": rounded(layer(x[None])[0].flatten().tolist())}


@torch.no_grad()
def gpt_oss():
    router = GptOssTopKRouter(GptOssConfig(hidden_size=HIDDEN, num_local_experts=16,
                                           num_experts_per_tok=4))
    filled(router.weight, ROUTER, 1)
    router.bias.zero_()
    return routing(router, hashed(INPUT, (TOKENS, HIDDEN)))


def main():
    write(HERE / "moe.json", {
        "mixtral": block(MixtralSparseMoeBlock, MixtralConfig, num_local_experts=8,
                         num_experts_per_tok=2),
        "qwen3_moe": block(Qwen3MoeSparseMoeBlock, Qwen3MoeConfig, num_experts=16,
                           num_experts_per_tok=4, norm_topk_prob=True),
        "olmoe": block(OlmoeSparseMoeBlock, OlmoeConfig, num_experts=16, num_experts_per_tok=8,
                       norm_topk_prob=False),
        "deepseek_v2": block(DeepseekV2Moe, DeepseekV2Config, n_routed_experts=16,
                             num_experts_per_tok=3, n_group=4, topk_group=2,
                             topk_method="group_limited_greedy", routed_scaling_factor=1.5,
                             n_shared_experts=1),
        "deepseek_v3": block(DeepseekV3MoE, DeepseekV3Config, n_routed_experts=16,
                             num_experts_per_tok=4, n_group=4, topk_group=2, norm_topk_prob=True,
                             routed_scaling_factor=2.5, n_shared_experts=1),
        "gpt_oss": gpt_oss(),
    })


if __name__ == "__main__":
    main()
