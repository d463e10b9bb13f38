#!/usr/bin/env python3
"""Makes family_texts.json: small tokenizers of each family's kind, and what transformers does by them.

Run by hand after a change of the cases, with transformers installed:
    python3 tests/golden/make_family_text_goldens.py
The tests read the JSON only. Not among them: model_type "llama" with the class LlamaTokenizer, where
transformers 5 puts something else in the place of what tokenizer.json says (no U+2581 behind special
tokens), other than before and than its own for "mistral" and "mixtral". Baton keeps to the file.
"""

import json
import pathlib
import tempfile

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers
import transformers
from transformers import AutoTokenizer

from make_text_goldens import TEXTS, decode_cases

HERE = pathlib.Path(__file__).resolve().parent

TRAINED_ON = [text for text in TEXTS if len(text) < 200] + [
    "In the beginning God created the heaven and the earth. And the earth was without form.",
    "def add(left, right):\n    total = left + right\n    return total\n",
    "12 345 6789, 3.14; don't you'll we've THEY'RE it's",
    "user assistant system model turn question answer hello world",
]
SPACE = "\u2581"

# Words of the published kinds; what a pattern matches is one pre-token.
BLOOM_WORDS = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"
QWEN_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
              r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PHI4_WORDS = (rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+{ENDINGS}|"
              rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*{ENDINGS}|"
              r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def special(content, **kwargs):
    return AddedToken(content, **({"normalized": False, "special": True} | kwargs))


def byte_level(pre_tokenizer, first, size=420, normalizer=None):
    """`first`: special tokens with the lowest ids."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(TRAINED_ON, trainers.BpeTrainer(
        vocab_size=size, special_tokens=first, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def split_bytes(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), behavior, invert),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def sentence_piece(first, prepend, size=430):
    """A BPE of characters with bytes for those that it does not know, spaces as U+2581."""
    trained = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Replace(" ", SPACE)
    trained.pre_tokenizer = pre_tokenizers.Split(SPACE, "merged_with_next")
    texts = [text for text in TRAINED_ON if text.isascii()]
    trained.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=size - 256, special_tokens=first, show_progress=False))
    learned = json.loads(trained.to_str())["model"]
    names = first + [f"<0x{byte:02X}>" for byte in range(256)]
    names += [piece for piece in learned["vocab"] if piece not in first]
    vocab = {piece: i for i, piece in enumerate(names)}
    merges = [tuple(merge) for merge in learned["merges"]]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prepend == "normalizer":
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
        steps.append(decoders.Strip(" ", 1, 0))
    elif prepend == "metaspace":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "first", split=False)
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = normalizers.Replace(" ", SPACE)
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def begins_with(tokenizer, token):
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B",
        special_tokens=[(token, tokenizer.token_to_id(token))])


def opt():
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False),
                           ["<s>", "<pad>", "</s>", "<unk>"])
    begins_with(tokenizer, "</s>")
    tokenizer.add_special_tokens([special(t, normalized=True) for t in ("<pad>", "</s>", "<unk>")])
    return tokenizer, {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True,
                       "add_prefix_space": False, "bos_token": "</s>", "eos_token": "</s>",
                       "unk_token": "</s>", "pad_token": "<pad>"}


def bloom():
    tokenizer = byte_level(split_bytes(BLOOM_WORDS), ["<unk>", "<s>", "</s>", "<pad>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([special(t) for t in ("<unk>", "<s>", "</s>", "<pad>")])
    return tokenizer, {"tokenizer_class": "BloomTokenizerFast", "add_prefix_space": False,
                       "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>",
                       "pad_token": "<pad>", "clean_up_tokenization_spaces": False}


def neox():
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False),
                           ["<|endoftext|>", "<|padding|>"], normalizer=normalizers.NFC())
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.add_special_tokens([special("<|endoftext|>"), special("<|padding|>")])
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)])
    return tokenizer, {"tokenizer_class": "GPTNeoXTokenizer", "add_prefix_space": False,
                       "unk_token": "<|endoftext|>", "bos_token": "<|endoftext|>",
                       "eos_token": "<|endoftext|>"}


def qwen():
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = byte_level(split_bytes(QWEN_WORDS), [], normalizer=normalizers.NFC())
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([special(t) for t in tokens])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in ("<think>", "</think>")])
    return tokenizer, {"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": False,
                       "add_prefix_space": False, "bos_token": None, "unk_token": None,
                       "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
                       "split_special_tokens": False, "errors": "replace"}


def phi4():
    tokens = ["<|endoftext|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]
    tokenizer = byte_level(split_bytes(PHI4_WORDS, "removed", True), [])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([special(t) for t in tokens[:1]])
    tokenizer.add_special_tokens([special(t, rstrip=True) for t in tokens[1:]])
    return tokenizer, {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": False,
                       "add_eos_token": False, "add_prefix_space": False,
                       "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>",
                       "unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}


def gemma():
    first = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"]
    tokenizer = sentence_piece(first, None)
    begins_with(tokenizer, "<bos>")
    tokenizer.add_special_tokens([special(t) for t in first])
    tokenizer.add_tokens([AddedToken("\n" * n, normalized=False) for n in range(2, 6)]
                         + [AddedToken(SPACE * n, normalized=False) for n in range(2, 8)])
    return tokenizer, {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True,
                       "add_eos_token": False, "bos_token": "<bos>", "eos_token": "<eos>",
                       "unk_token": "<unk>", "pad_token": "<pad>", "sp_model_kwargs": {},
                       "clean_up_tokenization_spaces": False, "spaces_between_special_tokens": False}


def phi3():
    tokenizer = sentence_piece(["<unk>", "<s>", "</s>"], "normalizer")
    begins_with(tokenizer, "<s>")
    tokenizer.add_special_tokens([special("<unk>"), special("<s>"), special("<|endoftext|>")])
    tokenizer.add_tokens([AddedToken("</s>", normalized=False, rstrip=True)])
    tokenizer.add_special_tokens(
        [special(t, rstrip=True) for t in ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>")])
    return tokenizer, {"tokenizer_class": "LlamaTokenizer", "legacy": False, "add_bos_token": False,
                       "add_eos_token": False, "bos_token": "<s>", "eos_token": "<|endoftext|>",
                       "unk_token": "<unk>", "pad_token": "<|endoftext|>", "sp_model_kwargs": {}}


def mixtral(prepend="normalizer", **kwargs):
    tokenizer = sentence_piece(["<unk>", "<s>", "</s>"], prepend)
    begins_with(tokenizer, "<s>")
    tokenizer.add_special_tokens([special(t) for t in ("<unk>", "<s>", "</s>")])
    return tokenizer, {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True,
                       "add_eos_token": False, "bos_token": "<s>", "eos_token": "</s>",
                       "unk_token": "<unk>", "sp_model_kwargs": {},
                       "use_default_system_prompt": False} | kwargs


# Name, model_type of config.json, tokenizer and its configuration.
FAMILIES = [
    ("OPT", "opt", opt),
    ("BLOOM", "bloom", bloom),
    ("GPT-NeoX", "gpt_neox", neox),
    ("Qwen3", "qwen3", qwen),
    ("Qwen2-MoE", "qwen2_moe", qwen),
    ("Gemma 2", "gemma2", gemma),
    ("Gemma 3", "gemma3_text", gemma),
    ("Phi-3", "phi3", phi3),
    ("Phi-4-mini", "phi3", phi4),
    ("Mixtral", "mixtral", lambda: mixtral(legacy=True)),
    ("Mixtral, older", "mixtral", mixtral),
    ("Mixtral, newer", "mixtral", lambda: mixtral("metaspace", legacy=False)),
    ("Mistral", "mistral", lambda: mixtral(legacy=True)),
]

MARKS = {
    "OPT": ["</s>hello<pad> x", "it's  12 123"],
    "BLOOM": ["<s>a</s> b", "(a|b) [c] d.e,f!g?h", "\u3002\uff0cx\u060c \u0964y"],
    "GPT-NeoX": ["a" + " " * 5 + "b", " " * 30 + "x", "  <|endoftext|>  y", "e\u0301" + " " * 2],
    "Qwen3": ["<|im_start|>user\nHi<|im_end|>\n", "<think>\n\n</think>x", "e\u0301 12345"],
    "Qwen2-MoE": ["<|im_start|>system\n\n<|im_end|> z"],
    "Gemma 2": ["<start_of_turn>user\nHi<end_of_turn>\n", "a\n\n\nb   c", " <bos> x", SPACE * 3],
    "Gemma 3": ["<bos><start_of_turn>model\n", "  a"],
    "Phi-3": ["<|user|>\nHi <|end|>\n<|assistant|>\n", "<s> a</s>  b", "<|end|> \t x", " a"],
    "Phi-4-mini": ["<|user|>Hi <|end|>  <|assistant|>", "camelCaseHTTPServer's 1234567//\n/"],
    "Mixtral": ["<s>[INST] Hi [/INST] yes</s>[INST] x", "</s> a</s>b", "  a", SPACE],
    "Mixtral, older": ["<s>[INST] Hi [/INST] yes</s>[INST] x"],
    "Mixtral, newer": ["<s>[INST] Hi [/INST] yes</s>[INST] x", "</s>a"],
    "Mistral": ["<s>[INST] Hi [/INST] yes</s>[INST] x"],
}
SHARED = ["", " ", "hello world", " hello  world ", "a\nb\n\nc\r\n", "tab\tx", "don't WE'LL I'm",
          "1234567890 3.14", "caf\u00e9 cafe\u0301 \u20ac", "\u4f60\u597d\uff0c\u4e16\u754c\u3002",
          "\U0001f600 \U0001f468\u200d\U0001f469", "\x00\x7f\ufffd", "x=1;y=2//z {\"a\": [1]}",
          "\u0e2a\u0e27\u0e31 \u0928\u092e\u0938\u094d\u0924\u0947", "DON'T  stop\u00a0now\u3000x"]


def load(name, model_type, make):
    tokenizer, config = make()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(f"{folder}/tokenizer.json")
        pathlib.Path(folder, "tokenizer_config.json").write_text(json.dumps(config))
        pathlib.Path(folder, "config.json").write_text(json.dumps({"model_type": model_type}))
        loaded = AutoTokenizer.from_pretrained(folder)
        description = json.loads(pathlib.Path(folder, "tokenizer.json").read_text())
    return loaded, {"name": name, "model": {"model_type": model_type}, "config": config,
                    "tokenizer": description}


def family(name, model_type, make):
    loaded, result = load(name, model_type, make)
    result["texts"] = []
    for text in SHARED + MARKS[name]:
        ids = loaded.encode(text, add_special_tokens=False)
        result["texts"].append({"text": text, "ids": ids, "ids_special": loaded.encode(text),
                                "decoded": loaded.decode(ids),
                                "decoded_skip": loaded.decode(ids, skip_special_tokens=True)})
    result["decode"] = decode_cases(loaded, len(loaded), 10)
    return result


def main():
    goldens = {
        "made_with": f"transformers {transformers.__version__}, tokenizers {tokenizers.__version__}",
        "families": [family(*each) for each in FAMILIES],
    }
    path = HERE / "family_texts.json"
    path.write_text(json.dumps(goldens, separators=(",", ":")).replace('},{"', '},\n{"') + "\n")
    print(f"{path}: {path.stat().st_size} bytes, {len(goldens['families'])} families")


if __name__ == "__main__":
    main()
