"""Models of each family of the random ones in tests/golden, with more elements in each head and
layer, so that ranks can divide them. Standard library only."""
import array
import glob
import json
import pathlib
import random
import struct

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden" / "models"
FACTOR = 8  # The sums of two ranks take parts of 32 elements.
MOST_DRAWN = 1 << 14  # Of a tensor; larger ones repeat what was drawn.
SCALED = ("hidden_size", "n_embed", "head_dim", "intermediate_size", "ffn_dim",
          "moe_intermediate_size", "shared_expert_intermediate_size", "word_embed_proj_dim")
# The folder, and fields that are otherwise: of 3 or 5 heads two ranks have no halves.
FAMILIES = {
    "opt": ("opt", dict(num_attention_heads=4)),
    "opt-350m": ("opt-post-norm", dict(num_attention_heads=4)),
    "bloom": ("bloom", {}),
    "neox": ("neox", dict(num_attention_heads=4)),
    "neox-sequential": ("neox-sequential-shards", dict(num_attention_heads=4)),
    "gemma2": ("gemma2", {}),
    "gemma3": ("gemma3", {}),
    "phi3-longrope": ("phi3-longrope-crossing", {}),
    "mixtral": ("mixtral-window-shards", {}),
    "qwen3-moe": ("qwen3-moe", {}),
    "qwen2-moe": ("qwen2-moe", {}),
}


def shapes_of(folder):
    shapes = {}
    for path in sorted(glob.glob(str(folder / "*.safetensors"))):
        with open(path, "rb") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(size))
        shapes |= {name: tensor["shape"] for name, tensor in header.items()
                   if name != "__metadata__"}
    return shapes


def scaled(name, shape, vocab):
    """Vocabulary, positions, experts and single numbers stay as many."""
    kept = [False] * len(shape)
    if shape[0] == vocab or "embed_positions" in name or name.endswith(".gate.weight"):
        kept[0] = True
    return [n if keep or n == 1 else n * FACTOR for n, keep in zip(shape, kept)]


def spread(name, shape):
    """(middle, width) of what is drawn."""
    if len(shape) == 1:
        return (0, 0.1) if name.endswith("bias") else (1, 0.3)
    return 0, 1.7 * (1 if "embed" in name else shape[-1] ** -0.5)


def config_of(folder, changes):
    config = json.loads((folder / "config.json").read_text())
    for key in SCALED:
        if config.get(key):
            config[key] *= FACTOR
    rope = config.get("rope_parameters") or {}
    for key in ("long_factor", "short_factor"):
        if key in rope:
            rope[key] = [x for x in rope[key] for _ in range(FACTOR)]
    return config | changes | {"dtype": "float32", "torch_dtype": "float32"}


def write(family, folder):
    """The model's folder, with a tokenizer of as many words, which the router asks for."""
    name, changes = FAMILIES[family]
    config = config_of(GOLDEN / name, changes)
    folder = pathlib.Path(folder) / family
    folder.mkdir(parents=True)
    draw = random.Random(family)
    header, data = {}, bytearray()
    for tensor, shape in shapes_of(GOLDEN / name).items():
        shape = scaled(tensor, shape, config["vocab_size"])
        count = 1
        for n in shape:
            count *= n
        middle, width = spread(tensor, shape)
        drawn = min(count, MOST_DRAWN)
        numbers = array.array("f", (middle + width * draw.uniform(-1, 1) for _ in range(drawn)))
        numbers = (numbers * -(-count // drawn))[:count]
        begin = len(data)
        data += numbers.tobytes()
        header[tensor] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps(config))
    words = {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(config["vocab_size"])},
             "unk_token": "w0"}
    (folder / "tokenizer.json").write_text(json.dumps(
        {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
         "normalizer": None, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None,
         "decoder": None, "model": words}))
    return folder
