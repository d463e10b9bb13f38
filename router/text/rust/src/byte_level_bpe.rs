//! The tokenizer of folders that hold vocab.json and merges.txt in place of a tokenizer.json: GPT-2's
//! byte-level BPE, as transformers makes it for OPT.

use serde_json::{json, Map, Value};

use crate::failure::{Failure, Outcome};

/// Its tokenizer.json. `vocab`: token to id; `config`: tokenizer_config.json.
pub fn description(
    vocab: Map<String, Value>,
    merges: &str,
    config: &Map<String, Value>,
) -> Outcome<Value> {
    let flag = |key: &str| config.get(key).and_then(Value::as_bool).unwrap_or(false);
    let mut single = vec![json!({"Sequence": {"id": "A", "type_id": 0}})];
    let mut special_tokens = Map::new();
    for (key, wanted) in [("bos_token", "add_bos_token"), ("eos_token", "add_eos_token")] {
        if !flag(wanted) {
            continue;
        }
        let (token, id) = named_token(&vocab, config, key)?;
        let at = if key == "bos_token" { 0 } else { single.len() };
        single.insert(at, json!({"SpecialToken": {"id": token, "type_id": 0}}));
        special_tokens.insert(token.clone(), json!({"id": token, "ids": [id], "tokens": [token]}));
    }
    let pair = json!([{"Sequence": {"id": "A", "type_id": 0}},
                      {"Sequence": {"id": "B", "type_id": 1}}]);
    let byte_level =
        |space: bool| json!({"type": "ByteLevel", "add_prefix_space": space, "trim_offsets": true,
                             "use_regex": true});
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": byte_level(flag("add_prefix_space")),
        "post_processor": {"type": "TemplateProcessing", "single": single, "pair": pair,
                           "special_tokens": special_tokens},
        "decoder": byte_level(true),
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
                  "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": false,
                  "byte_fallback": false, "vocab": vocab, "merges": pairs(merges)?},
    }))
}

fn named_token(
    vocab: &Map<String, Value>,
    config: &Map<String, Value>,
    key: &str,
) -> Outcome<(String, u64)> {
    let value = config.get(key);
    let content = value.and_then(|token| token.get("content")).or(value).and_then(Value::as_str);
    let found = content.and_then(|text| Some((text.to_string(), vocab.get(text)?.as_u64()?)));
    found.ok_or_else(|| {
        Failure::invalid(format!("tokenizer_config.json: {key} must be a token of vocab.json"))
    })
}

fn pairs(merges: &str) -> Outcome<Vec<[&str; 2]>> {
    let lines = merges.lines().enumerate();
    let counts = |(_, line): &(usize, &str)| !line.is_empty() && !line.starts_with("#version");
    lines
        .filter(counts)
        .map(|(number, line)| match line.split_once(' ') {
            Some((first, second)) if !second.contains(' ') => Ok([first, second]),
            _ => Err(Failure::invalid(format!(
                "merges.txt: line {} is not two tokens with a space between them",
                number + 1
            ))),
        })
        .collect()
}
