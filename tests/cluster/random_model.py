"""Random models that groups of up to 8 ranks can hold, in Hugging Face layout. Standard library only."""
import array
import dataclasses
import json
import pathlib
import random
import struct

HEADS, VOCAB = 8, 211
MOST_DRAWN = 1 << 16  # Of a tensor; larger ones repeat what was drawn.


@dataclasses.dataclass
class Sizes:
    head_dim: int = 32
    ffn: int = 256
    layers: int = 2
    vocab: int = VOCAB


def shapes(hidden, kv_heads, tied, sizes):
    """{name: (shape, spread)} of a llama's tensors."""
    def linear(name, rows, columns):
        return {name + ".weight": ((rows, columns), columns ** -0.5)}
    tensors = {"model.embed_tokens.weight": ((sizes.vocab, hidden), 1),
               "model.norm.weight": ((hidden,), 1)}
    for i in range(sizes.layers):
        layer = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}{name}.weight"] = ((hidden,), 1)
        for name, heads in (("q", HEADS), ("k", kv_heads), ("v", kv_heads)):
            rows = heads * sizes.head_dim
            tensors |= linear(f"{layer}self_attn.{name}_proj", rows, hidden)
        tensors |= linear(f"{layer}self_attn.o_proj", hidden, HEADS * sizes.head_dim)
        for name, rows, columns in (("gate", sizes.ffn, hidden), ("up", sizes.ffn, hidden),
                                    ("down", hidden, sizes.ffn)):
            tensors |= linear(f"{layer}mlp.{name}_proj", rows, columns)
    return tensors if tied else tensors | linear("lm_head", sizes.vocab, hidden)


def write(folder, seed, kv_heads, dtype="F32", tied=False, hidden=96, sizes=Sizes()):
    """A llama of 8 heads; every size divides by 8 as ranks need it."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    draw = random.Random(seed)
    header, data = {}, bytearray()
    for name, (shape, spread) in shapes(hidden, kv_heads, tied, sizes).items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        drawn = min(count, MOST_DRAWN)
        numbers = array.array("f", (draw.uniform(-1.7, 1.7) * spread for _ in range(drawn)))
        if dtype == "BF16":  # The upper half of each.
            numbers = array.array("H", numbers.tobytes())[1::2]
        numbers = (numbers * -(-count // drawn))[:count]
        begin = len(data)
        data += numbers.tobytes()
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
        "intermediate_size": sizes.ffn, "num_attention_heads": HEADS, "num_key_value_heads": kv_heads,
        "head_dim": sizes.head_dim, "num_hidden_layers": sizes.layers, "vocab_size": sizes.vocab,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512, "rope_theta": 10000.0, "hidden_act": "silu",
        "torch_dtype": "bfloat16" if dtype == "BF16" else "float32", "bos_token_id": 0,
        "eos_token_id": 1, "tie_word_embeddings": tied}))
    words = {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(sizes.vocab)}, "unk_token": "w0"}
    (folder / "tokenizer.json").write_text(json.dumps(
        {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
         "normalizer": None, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None,
         "decoder": None, "model": words}))
    return folder
