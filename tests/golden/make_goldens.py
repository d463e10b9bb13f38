#!/usr/bin/env python3
"""Makes the committed golden files with transformers (fp32, eager attention, CPU).

Not part of the build or the tests. It needs torch and transformers 5:
  python3 -m venv ref && ref/bin/pip install torch transformers
  ref/bin/python tests/golden/make_goldens.py
The formats are in README.md. Random models are seeded; the files change only with the script or
with torch.
"""

import json
import math
import pathlib
import shutil

import torch
from transformers import (AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig,
                          MistralConfig, Qwen2Config, Qwen3Config)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

HERE = pathlib.Path(__file__).resolve().parent
TINY_KJV = HERE.parent.parent / "deploy" / "models" / "tiny-kjv"
NUM_GREEDY = 48


# --- what transformers answers ------------------------------------------------------------------

def load(folder, dtype):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    return model.eval()


@torch.no_grad()
def prompt_logprobs(model, ids):
    if len(ids) < 2:
        return []
    logits = model(torch.tensor([ids])).logits[0].float()
    logprobs = torch.log_softmax(logits, dim=-1)
    return logprobs[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()


def original_length(config):
    """Of longrope: a longer sequence has other factors; 0 of others."""
    rope = getattr(config, "rope_parameters", None) or {}
    is_longrope = rope.get("rope_type") == "longrope"
    return rope["original_max_position_embeddings"] if is_longrope else 0


@torch.no_grad()
def greedy(model, ids):
    """Greedy tokens past end tokens, their log probabilities and top-2 margins of the logits."""
    tokens, logprobs, margins = [], [], []
    past, step = None, torch.tensor([ids])
    original = original_length(model.config)
    for _ in range(NUM_GREEDY):
        if len(ids) + len(tokens) == original + 1:
            # As Phi3ForCausalLM.prepare_inputs_for_generation: K of the short factors goes.
            past, step = None, torch.tensor([ids + tokens])
        out = model(step, past_key_values=past, use_cache=True)
        past, logits = out.past_key_values, out.logits[0, -1].float()
        top = torch.topk(logits, 2)
        token = int(top.indices[0])
        tokens.append(token)
        margins.append(float(top.values[0] - top.values[1]))
        logprobs.append(float(torch.log_softmax(logits, dim=-1)[token]))
        step = torch.tensor([[token]])
    return tokens, logprobs, margins


def rounded(values):
    return [round(v, 6) for v in values]


def rms(differences):
    return math.sqrt(sum(d * d for d in differences) / max(1, len(differences)))


def golden_of(folder, prompts):
    """prompts: [(name, text or None, ids)]."""
    exact, bf16 = load(folder, torch.float32), load(folder, torch.bfloat16)
    cases, all_differences = [], []
    for name, text, ids in prompts:
        scores = prompt_logprobs(exact, ids)
        differences = [a - b for a, b in zip(scores, prompt_logprobs(bf16, ids))]
        all_differences += differences
        tokens, logprobs, margins = greedy(exact, ids)
        case = {"name": name}
        if text is not None:
            case["text"] = text
        case |= {"prompt_ids": ids, "prompt_logprobs": rounded(scores), "greedy_ids": tokens,
                 "greedy_logprobs": rounded(logprobs), "greedy_margins": rounded(margins),
                 "bf16_rms": round(rms(differences), 8)}
        cases.append(case)
    return {"cases": cases, "bf16_rms": round(rms(all_differences), 8)}


def write(path, value):
    """JSON with one line per list of numbers."""
    def lines(v, indent):
        pad = " " * indent
        if isinstance(v, dict):
            body = ",\n".join(f"{pad} {json.dumps(k)}: {lines(x, indent + 1)}"
                              for k, x in v.items())
            return "{\n" + body + "\n" + pad + "}"
        if isinstance(v, list) and v and isinstance(v[0], dict):
            return "[\n" + ",\n".join(f"{pad} {lines(x, indent + 1)}" for x in v) + "\n" + pad + "]"
        return json.dumps(v)
    path.write_text(lines(value, 0) + "\n")


# --- tiny-kjv -----------------------------------------------------------------------------------

TEXTS = [
    "The LORD is my shepherd;",
    "In the beginning",
    "And it came to pass in those days, that there went out a decree",
    "Blessed",
    "Now these are the generations of the sons of Noah, Shem, Ham, and Japheth:\n",
    "   spaces,  tabs\tand\n\nblank lines   ",
    "Caf\u00e9 na\u00efve \u2014 \u4f60\u597d \U0001f600!",
    "for (int i = 0; i < 10; ++i) { total += price[i] * 3.14; }",
]
CHATS = [
    [{"role": "user", "content": "Hello!"}],
    [{"role": "system", "content": "Answer with one verse."},
     {"role": "user", "content": "Psalms 23:1"},
     {"role": "assistant", "content": "The LORD is my shepherd; I shall not want."},
     {"role": "user", "content": " Tell me of the sea. "}],
]


def tiny_kjv():
    tokenizer = AutoTokenizer.from_pretrained(TINY_KJV)
    prompts = [("bos only", None, [tokenizer.bos_token_id])]
    for text in TEXTS:
        prompts.append((text.split("\n")[0][:24], text, tokenizer(text)["input_ids"]))
    for i, chat in enumerate(CHATS):
        text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        prompts.append((f"chat {i}", text,
                        tokenizer(text, add_special_tokens=False)["input_ids"]))
    # Long prompts: what the model itself continues with, sampled.
    model = load(TINY_KJV, torch.float32)
    torch.manual_seed(7)
    for length in (600, 1400):
        ids = model.generate(torch.tensor([prompts[2][2]]), do_sample=True, max_length=length,
                             min_length=length, pad_token_id=1)[0].tolist()
        prompts.append((f"sampled {length}", None, ids))
    write(HERE / "tiny-kjv.json", golden_of(TINY_KJV, prompts))


# --- random models ------------------------------------------------------------------------------

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
        "original_max_position_embeddings": 32}
SIZES = {"vocab_size": 128, "num_hidden_layers": 2, "max_position_embeddings": 256,
         "bos_token_id": 1, "eos_token_id": 2}
# name: (config, dtype on disk, shard size, form of config.json)
MODELS = {
    "llama-llama3-rope": (LlamaConfig(
        **SIZES, hidden_size=48, intermediate_size=80, num_attention_heads=6,
        num_key_value_heads=2, tie_word_embeddings=True, rms_norm_eps=1e-5,
        rope_parameters=LLAMA3), torch.bfloat16, None, "new"),
    "llama-mqa-bias": (LlamaConfig(
        **SIZES, hidden_size=24, intermediate_size=40, num_attention_heads=4,
        num_key_value_heads=1, head_dim=80, attention_bias=True, mlp_bias=True), torch.float16,
        None, "old"),
    "llama-dynamic": (LlamaConfig(
        **SIZES, hidden_size=32, intermediate_size=56, num_attention_heads=4,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}),
        torch.float32, None, "old"),
    "mistral-linear-shards": (MistralConfig(
        **SIZES, hidden_size=44, intermediate_size=72, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, sliding_window=None,
        rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
        torch.float16, "20KB", "old"),
    "qwen2-yarn": (Qwen2Config(
        **SIZES, hidden_size=48, intermediate_size=64, num_attention_heads=6,
        num_key_value_heads=3, tie_word_embeddings=True, rope_parameters=YARN), torch.float32,
        None, "old"),
    "qwen2-yarn-untruncated": (Qwen2Config(
        **SIZES, hidden_size=64, intermediate_size=56, num_attention_heads=2,
        num_key_value_heads=1, hidden_act="gelu_pytorch_tanh", rope_parameters=YARN | {
            "truncate": False, "beta_fast": 16.0, "beta_slow": 2.0, "mscale": 1.0,
            "mscale_all_dim": 0.5}), torch.bfloat16, None, "new"),
    "qwen3": (Qwen3Config(
        **SIZES, hidden_size=40, intermediate_size=64, num_attention_heads=6,
        num_key_value_heads=2, head_dim=24, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}), torch.bfloat16, None,
        "new"),
    "qwen3-bias-shards": (Qwen3Config(
        **SIZES, hidden_size=36, intermediate_size=52, num_attention_heads=2,
        num_key_value_heads=2, head_dim=32, attention_bias=True), torch.float32, "30KB", "old"),
    "mistral-window": (MistralConfig(
        **SIZES, hidden_size=32, intermediate_size=48, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=16), torch.bfloat16, None, "old"),
    # A window in the second layer only.
    "qwen2-window-layers": (Qwen2Config(
        **SIZES, hidden_size=32, intermediate_size=48, num_attention_heads=4,
        num_key_value_heads=2, use_sliding_window=True, sliding_window=13,
        max_window_layers=1), torch.float32, None, "new"),
}


def randomize(model):
    """Weights large enough that every feature moves the logits and margins are not ties."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("bias"):
                p.normal_(0, 0.3)
            elif "norm" in name or "ln_f" in name:
                p.normal_(1, 0.2)
            elif "embed" in name:
                # A tied embedding of this size does not just repeat the last token.
                p.normal_(0, 0.3 if model.config.tie_word_embeddings else 1)
            else:
                p.normal_(0, 1.3 / math.sqrt(p.shape[1]))


def old_form(config):
    """The names that transformers 4 wrote."""
    config = dict(config)
    rope = dict(config.pop("rope_parameters"))
    config["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {"type": kind} | rope
    config["torch_dtype"] = config.pop("dtype")
    config.pop("layer_types", None)
    return config


def random_model(name, row, seed, generator, to_old_form=old_form):
    config, dtype, shard_size, form = row
    folder = HERE / "models" / name
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    randomize(model)
    options = {"max_shard_size": shard_size} if shard_size else {}
    model.to(dtype).save_pretrained(folder, **options)
    (folder / "generation_config.json").unlink()
    forms = {"new": json.loads((folder / "config.json").read_text())}
    forms["old"] = to_old_form(forms["new"])
    other = "old" if form == "new" else "new"
    (folder / f"config.{other}.json").write_text(json.dumps(forms[other], indent=1) + "\n")
    (folder / "config.json").write_text(json.dumps(forms[form], indent=1) + "\n")
    prompts = []
    for length in (1, 2, 17, 100):
        ids = torch.randint(3, config.vocab_size, (length,), generator=generator).tolist()
        prompts.append((f"{length} random ids", None, ids))
    write(folder / "golden.json", golden_of(folder, prompts))


def random_models():
    generator = torch.Generator().manual_seed(11)
    for seed, (name, row) in enumerate(MODELS.items()):
        random_model(name, row, seed, generator)


# --- rope frequencies and config defaults ---------------------------------------------------------

ROPES = [
    (16, 2048, {"rope_type": "default", "rope_theta": 10000.0}),
    (128, 8192, {"rope_type": "default", "rope_theta": 500000.0}),
    (80, 4096, {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}),
    (64, 4096, {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.3}),
    (128, 131072, {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0,
                   "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8192}),
    (64, 131072, {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0,
                  "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 8192}),
    (8, 256, LLAMA3),
    (128, 32768, {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0,
                  "original_max_position_embeddings": 32768}),
    (64, 4096, {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0}),
    (64, 163840, {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "beta_fast": 32,
                  "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
                  "original_max_position_embeddings": 4096}),
    (64, 163840, {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "mscale": 0.707,
                  "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096}),
    (64, 131072, {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0,
                  "beta_slow": 1.0, "truncate": False,
                  "original_max_position_embeddings": 4096}),
    (32, 8192, {"rope_type": "yarn", "rope_theta": 10000.0, "factor": None,
                "attention_factor": 1.25, "original_max_position_embeddings": 2048}),
    (4, 64, {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0,
             "original_max_position_embeddings": 32}),
]
# The same, and the longest sequence: beyond the original length the long factors count.
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0,
            "original_max_position_embeddings": 4096,
            "short_factor": [1 + i / 64 for i in range(48)],
            "long_factor": [1.08 * 1.09**i for i in range(48)]}
LONGROPES = [
    (96, 131072, LONGROPE, 131072),
    (96, 131072, LONGROPE, 4096),
    (96, 131072, LONGROPE, 4097),
    (96, 4096, LONGROPE, 4096),
    (8, 32768, {"rope_type": "longrope", "rope_theta": 500000.0, "factor": 2.0,
                "original_max_position_embeddings": 32768, "short_factor": [0.998, 1.5, 2, 1],
                "long_factor": [1, 2, 3, 4]}, 32768),
    (8, 1024, {"rope_type": "longrope", "rope_theta": 10000.0, "attention_factor": 1.25,
               "original_max_position_embeddings": 64, "short_factor": [1, 1, 1, 1],
               "long_factor": [1, 3, 9.5, 27]}, 1024),
]


def rope_config(dim, max_positions, parameters):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
            "hidden_size": 4 * dim, "num_attention_heads": 4, "head_dim": dim,
            "max_position_embeddings": max_positions, "rope_parameters": dict(parameters)}


def ropes():
    cases = []
    for dim, max_positions, parameters in ROPES:
        config = rope_config(dim, max_positions, parameters)
        rotary = LlamaRotaryEmbedding(LlamaConfig(**json.loads(json.dumps(config))))
        cases.append({"config": config,
                      "attention_scaling": float(rotary.attention_scaling),
                      "inv_freq": rotary.inv_freq.tolist()})
    for dim, max_positions, parameters, length in LONGROPES:
        config = rope_config(dim, max_positions, parameters)
        inv_freq, scaling = ROPE_INIT_FUNCTIONS["longrope"](
            LlamaConfig(**json.loads(json.dumps(config))), "cpu", seq_len=length)
        cases.append({"config": config, "sequence_len": length,
                      "attention_scaling": float(scaling), "inv_freq": inv_freq.tolist()})
    write(HERE / "rope.json", {"cases": cases})


CONFIGS = [{"model_type": kind, **extra}
           for kind in ("llama", "mistral", "qwen2", "qwen3")
           for extra in ({}, {"num_key_value_heads": None}, {"tie_word_embeddings": True},
                         {"hidden_size": 512, "num_attention_heads": 8, "rope_theta": 5e5,
                          "num_key_value_heads": 2, "torch_dtype": "float16"},
                         {"rope_scaling": {"type": "linear", "factor": 3.0}, "rope_theta": 2e4},
                         {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0},
                          "rope_theta": 9.0, "dtype": "bfloat16", "torch_dtype": "float16"},
                         {"rope_scaling": {"rope_type": "yarn", "type": "linear", "factor": 2.0},
                          "original_max_position_embeddings": 777, "eos_token_id": [4, 3],
                          "bos_token_id": None})]


def config_defaults():
    """What transformers makes of sparse config.json files."""
    cases = []
    names = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    for given in CONFIGS:
        given = {"architectures": [names[given["model_type"]] + "ForCausalLM"], **given}
        if given["model_type"] == "mistral":
            given["sliding_window"] = None
            if given.get("num_key_value_heads", 1) is None:
                continue  # Refused by transformers.
        config = AutoConfig.for_model(**json.loads(json.dumps(given)))
        config.standardize_rope_params()
        head_dim = getattr(config, "head_dim", None)
        cases.append({"config": given, "expect": {
            "vocab_size": config.vocab_size, "hidden_size": config.hidden_size,
            "ffn_size": config.intermediate_size, "num_layers": config.num_hidden_layers,
            "num_heads": config.num_attention_heads, "num_kv_heads": config.num_key_value_heads,
            "head_dim": head_dim or config.hidden_size // config.num_attention_heads,
            "norm_eps": config.rms_norm_eps, "tied": config.tie_word_embeddings,
            "max_position_embeddings": config.max_position_embeddings,
            "rope_theta": config.rope_parameters["rope_theta"],
            "rope_type": config.rope_parameters["rope_type"],
            "rope_factor": config.rope_parameters.get("factor"),
            "rope_original": config.rope_parameters.get("original_max_position_embeddings"),
            "dtype": str(config.dtype).removeprefix("torch."), "bos": config.bos_token_id,
            "eos": config.eos_token_id}})
    write(HERE / "config.json", {"cases": cases})


if __name__ == "__main__":
    torch.set_num_threads(1)
    ropes()
    config_defaults()
    random_models()
    tiny_kjv()
    print("done")
