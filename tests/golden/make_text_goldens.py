#!/usr/bin/env python3
"""Makes text_goldens.json: what transformers does with texts, token ids and chat templates.

Run by hand after a change of the cases, with transformers and jinja2 installed:
    python3 tests/golden/make_text_goldens.py
The tests read the JSON only.
"""

import json
import os
import pathlib
import random
import tempfile

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
import transformers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from text_golden_templates import CONVERSATIONS, TEMPLATES, TOOLS

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parent.parent / "deploy/models/tiny-kjv"

TEXTS = [
    "",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    " \n \n\n",
    "a",
    "A",
    "In the beginning God created the heaven and the earth.",
    "And the LORD said unto Moses, Go in unto Pharaoh.",
    "hello world",
    " hello",
    "hello ",
    "  two  spaces  ",
    "don't can't we'll I'm they've she'd it's",
    "DON'T WE'LL",
    "1234567890",
    "3.14159 -42 1e-9",
    "x=1;y=2//z",
    "MixedCASE camelCase snake_case kebab-case",
    "!?.,;:'\"()[]{}<>",
    "...---___***",
    "a\nb\n\nc\n\n\n",
    "line\r\nline\rline",
    "tab\tand\ttab",
    "trailing newline\n",
    "\u00a0no\u00a0break",
    "\u3000ideographic\u3000space",
    "\u200bzero\u200dwidth\ufeff",
    "caf\u00e9 na\u00efve \u00fcber",
    "cafe\u0301 combining e\u0301\u0327",
    "\u1e9e\u00df\u0130\u0131\u01c5",
    "\u0391\u03b2\u03b3 \u0410\u0431\u0432 \u05d0\u05d1\u05d2 \u0627\u0628\u062c",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002",
    "\u3053\u3093\u306b\u3061\u306f",
    "\uc548\ub155\ud558\uc138\uc694",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\u0928\u092e\u0938\u094d\u0924\u0947",
    "\U0001f600",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd",
    "a\U0001f600b\U0001f600c",
    "\U00010348\U0001d4d0\U000e0001",
    "\ufffd\ufffe\uffff",
    "\x00\x01\x02\x7f\x80\x9f",
    "nul\x00inside",
    "\x1b[31mred\x1b[0m",
    "\u0661\u0662\u0663 \u00b2\u2153\u2167",
    "<|user|>",
    "<|begin_of_text|>In the beginning<|end_of_text|>",
    "<|user|>\nHi<|end|>\n<|assistant|>\n",
    "<|USER|> <|user |> <|us er|> |user|>",
    "x<|end|><|end|>y",
    "<|end|",
    "&lt;b&gt; <b>bold</b>",
    '{"a": [1, 2.5, null, true]}',
    "http://example.com/a?b=c&d=%20#e",
    "def f(x):\n    return x + 1\n",
    "\u2018quotes\u2019 \u201cdouble\u201d \u2013 \u2014 \u2026",
    "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324\u031e\u0349\u035a\u032f\u031e\u0320\u034dA",
    "a" * 300,
    " " * 100 + "x",
]

LONG_TEXTS = [
    ("In the beginning God created the heaven and the earth. ", 800),
    ("\U0001f600 \n", 500),
    ("ab", 5000),
    ("<|end|>", 700),
]


def checksum(ids):
    return sum((i + 1) * token for i, token in enumerate(ids)) % (1 << 32)


def encode_cases(tokenizer):
    cases = []
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        cases.append(
            {
                "text": text,
                "ids": ids,
                "ids_special": tokenizer.encode(text, add_special_tokens=True),
                "decoded": tokenizer.decode(ids, skip_special_tokens=False),
                "decoded_skip": tokenizer.decode(ids, skip_special_tokens=True),
            }
        )
    return cases


def long_cases(tokenizer):
    cases = []
    for text, times in LONG_TEXTS:
        ids = tokenizer.encode(text * times, add_special_tokens=False)
        cases.append({"text": text, "times": times, "num_ids": len(ids), "checksum": checksum(ids)})
    return cases


def decode_cases(tokenizer, vocab_size, count):
    rng = random.Random(7)
    cases = []
    for i in range(count):
        ids = [rng.randrange(vocab_size) for _ in range(rng.randrange(1, 14))]
        cases.append(
            {
                "ids": ids,
                "text": tokenizer.decode(ids, skip_special_tokens=False),
                "text_skip": tokenizer.decode(ids, skip_special_tokens=True),
            }
        )
    return cases


def byte_fallback_tokenizer():
    """Of the kind of Llama 2: spaces as U+2581, unknown characters as byte tokens."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    for piece in [
        "\u2581",
        "a",
        "b",
        "c",
        "h",
        "e",
        "l",
        "o",
        "ab",
        "he",
        "ll",
        "hell",
        "hello",
        "\u2581hello",
        "\u2581a",
        "\u2581\u2581",
    ]:
        vocab[piece] = len(vocab)
    merges = [
        ("a", "b"),
        ("h", "e"),
        ("l", "l"),
        ("he", "ll"),
        ("hell", "o"),
        ("\u2581", "hello"),
        ("\u2581", "a"),
        ("\u2581", "\u2581"),
    ]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t in ("<unk>", "<s>", "</s>")]
    )
    return tokenizer


def word_piece_tokenizer():
    """Of the kind of BERT, with the clean-up of spaces that transformers does for it."""
    pieces = [
        "[UNK]",
        "[PAD]",
        "hello",
        "world",
        "##ing",
        "##s",
        "say",
        ",",
        ".",
        "'",
        "s",
        "don",
        "n",
        "t",
        "!",
        "?",
    ]
    tokenizer = tokenizers.Tokenizer(
        models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    tokenizer.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t in ("[UNK]", "[PAD]")]
    )
    return tokenizer


def other_tokenizers():
    result = []
    specs = [
        (
            "byte_fallback",
            byte_fallback_tokenizer(),
            {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
            [
                "hello",
                " hello  a",
                "hello \u20acb",
                "caf\u00e9 \U0001f600!",
                "a\nb",
                "",
                "<s>hello</s> ab",
            ],
        ),
        (
            "word_piece",
            word_piece_tokenizer(),
            {"unk_token": "[UNK]", "pad_token": "[PAD]", "clean_up_tokenization_spaces": True},
            ["Hello, worlds!", "saying hello .", "don't say", "what?"],
        ),
        # A token that only the configuration names, and one that it makes special.
        (
            "config_tokens",
            byte_fallback_tokenizer(),
            {
                "bos_token": "<s>",
                "eos_token": {
                    "__type": "AddedToken",
                    "content": "<|stop|>",
                    "lstrip": False,
                    "normalized": False,
                    "rstrip": False,
                    "single_word": False,
                    "special": True,
                },
                "extra_special_tokens": ["<|x|>"],
                "pad_token": "ab",
            },
            ["hello<|stop|>a", "<|x|><|x|>", "ab hello"],
        ),
    ]
    for name, tokenizer, config, texts in specs:
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save(os.path.join(folder, "tokenizer.json"))
            config = dict(config, tokenizer_class="PreTrainedTokenizerFast")
            with open(os.path.join(folder, "tokenizer_config.json"), "w") as out:
                json.dump(config, out)
            loaded = PreTrainedTokenizerFast.from_pretrained(folder)
            with open(os.path.join(folder, "tokenizer.json")) as source:
                description = json.load(source)
        cases = []
        for text in texts:
            ids = loaded.encode(text, add_special_tokens=False)
            cases.append(
                {
                    "text": text,
                    "ids": ids,
                    "decoded": loaded.decode(ids),
                    "decoded_skip": loaded.decode(ids, skip_special_tokens=True),
                }
            )
        result.append(
            {
                "name": name,
                "tokenizer": description,
                "config": config,
                "texts": cases,
                "decode": decode_cases(loaded, len(loaded), 12),
            }
        )
    return result


def vocab_and_merges():
    """Folders without a tokenizer.json, as most of OPT's are."""
    vocab = {token: i for i, token in enumerate(("<s>", "<pad>", "</s>", "<unk>"))}
    for byte in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocab[byte] = len(vocab)
    merges = ["h e", "l l", "he ll", "hell o", "\u0120 w", "o r", "\u0120w or", "1 2",
              "\u0120 \u0120"]
    for merge in merges:
        vocab[merge.replace(" ", "")] = len(vocab)
    token = {"__type": "AddedToken", "lstrip": False, "normalized": True, "rstrip": False,
             "single_word": False}
    named = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"}
    config = {key: token | {"content": content} for key, content in named.items()}
    configs = [config | {"add_bos_token": True, "tokenizer_class": "GPT2Tokenizer"},
               config | {"add_bos_token": False, "add_prefix_space": True},
               config | {"add_bos_token": True, "add_eos_token": True}]
    merges = "#version: 0.2\n" + "".join(f"{merge}\n" for merge in merges)
    result = {"vocab": vocab, "merges": merges, "cases": []}
    texts = ["", "hello world", " hello  12 123", "</s>hello<pad> x", "caf\u00e9\n\n\U0001f600"]
    for config in configs:
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("vocab.json", json.dumps(vocab)), ("merges.txt", merges),
                               ("tokenizer_config.json", json.dumps(config)),
                               ("config.json", '{"model_type": "opt"}')):
                pathlib.Path(folder, name).write_text(text)
            loaded = AutoTokenizer.from_pretrained(folder)
        result["cases"].append({"config": config, "texts": [
            {"text": text, "ids": loaded.encode(text),
             "decoded": loaded.decode(loaded.encode(text), skip_special_tokens=True)}
            for text in texts]})
    return result


def render(tokenizer, template, case):
    try:
        return {
            "text": tokenizer.apply_chat_template(
                case["messages"],
                chat_template=template,
                tokenize=False,
                add_generation_prompt=case["add_generation_prompt"],
                **case["kwargs"],
            )
        }
    except Exception as error:  # A template may refuse by any exception.
        message = str(error) if type(error).__name__ == "TemplateError" else ""
        return {"error": message}


def chat_cases(tokenizer):
    cases = []
    for name, template, variants in TEMPLATES:
        for conversation, kwargs, prompt in variants:
            kwargs = dict(kwargs)
            if kwargs.pop("with_tools", False):
                kwargs["tools"] = TOOLS
            case = {
                "name": name,
                "messages": CONVERSATIONS[conversation],
                "kwargs": kwargs,
                "add_generation_prompt": prompt,
            }
            case.update(render(tokenizer, template, case))
            cases.append(case)
    return cases


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    goldens = {
        "made_with": f"transformers {transformers.__version__}, tokenizers {tokenizers.__version__}",
        "encode": encode_cases(tokenizer),
        "encode_long": long_cases(tokenizer),
        "decode": decode_cases(tokenizer, len(tokenizer), 60),
        "templates": {name: template or "" for name, template, _ in TEMPLATES},
        "chat": chat_cases(tokenizer),
        "other_tokenizers": other_tokenizers(),
        "vocab_and_merges": vocab_and_merges(),
    }
    path = HERE / "text_goldens.json"
    path.write_text(
        json.dumps(goldens, ensure_ascii=True, separators=(",", ":")).replace('},{"', '},\n{"')
        + "\n"
    )
    print(f"{path}: {path.stat().st_size} bytes, {len(goldens['chat'])} renderings")


if __name__ == "__main__":
    main()
