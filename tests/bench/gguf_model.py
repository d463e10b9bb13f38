"""Writes a model folder of random_model.h as one GGUF file: the same bf16 weights for llama.cpp.

Usage: gguf_model.py MODEL_FOLDER FILE     (needs the package gguf: peers.py --install)
Rows of q and k are in another order there, because it rotates neighbours where Hugging Face's
layout rotates halves; 1-dimensional weights are f32. Both are as llama.cpp's loader wants them.
"""
import json
import pathlib
import sys

import gguf
import numpy

NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
         "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down"}


def tensors(path):
    """(name, 16-bit words) of a safetensors file, mapped."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    data = numpy.memmap(path, numpy.uint8, "r", offset=8 + length)
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        yield name, data[begin:end].view(numpy.uint16).reshape(entry["shape"])


def gguf_name(name):
    name = name.removesuffix(".weight")
    if not name.startswith("model.layers."):
        return NAMES[name] + ".weight"
    layer, rest = name.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{NAMES[rest]}.weight"


def neighbours_from_halves(words, heads):
    rows, columns = words.shape
    halves = words.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def add_config(writer, config):
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)


def add_tokenizer(writer, folder, config):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    special = {token["id"] for token in tokenizer["added_tokens"]}
    words = sorted(vocab, key=vocab.get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.CONTROL if i in special else gguf.TokenType.NORMAL
                            for i in range(len(words))])
    writer.add_token_merges([f"{words[3]} {words[3]}"])  # An empty list is not written.
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def main():
    folder, target = map(pathlib.Path, sys.argv[1:])
    config = json.loads((folder / "config.json").read_text())
    unfinished = target.with_suffix(".unfinished")
    writer = gguf.GGUFWriter(unfinished, "llama")
    add_config(writer, config)
    add_tokenizer(writer, folder, config)
    for name, words in tensors(folder / "model.safetensors"):
        if name.endswith("q_proj.weight"):
            words = neighbours_from_halves(words, config["num_attention_heads"])
        elif name.endswith("k_proj.weight"):
            words = neighbours_from_halves(words, config["num_key_value_heads"])
        if words.ndim == 1:
            floats = (words.astype(numpy.uint32) << 16).view(numpy.float32)
            writer.add_tensor(gguf_name(name), floats)
        else:
            writer.add_tensor(gguf_name(name), words.view(numpy.uint8),
                              raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(target)


if __name__ == "__main__":
    main()
