//! Reads the text files of a model folder in Hugging Face layout: special tokens and chat templates
//! with the precedence of transformers 5 (template files before tokenizer_config.json;
//! special_tokens_map.json only where the config has no added_tokens_decoder).

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::Path;

use serde_json::{Map, Value};
use tokenizers::AddedToken;

use crate::byte_level_bpe;
use crate::failure::{Failure, Outcome, NOT_FOUND};

const MAX_TOKENIZER_BYTES: u64 = 256 << 20;
const MAX_CONFIG_BYTES: u64 = 16 << 20;
pub const MAX_TEMPLATE_BYTES: u64 = 256 << 10;
const NAMED_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// A token as a configuration file writes it: a string, or an object with its properties.
#[derive(Clone, Debug)]
pub enum ConfigToken {
    Text(String),
    Full(AddedToken),
}

impl ConfigToken {
    pub fn content(&self) -> &str {
        match self {
            ConfigToken::Text(text) => text,
            ConfigToken::Full(token) => &token.content,
        }
    }
}

#[derive(Default)]
pub struct TextConfig {
    /// bos_token, eos_token, ... and a model's own `*_token` names; what templates see.
    pub named_tokens: Vec<(String, ConfigToken)>,
    pub extra_tokens: Vec<ConfigToken>,
    /// added_tokens_decoder, by ascending id.
    pub added_tokens: Vec<AddedToken>,
    /// Name of a template to its source and the file it comes from.
    pub templates: BTreeMap<String, TemplateSource>,
    pub split_special_tokens: bool,
    pub clean_up_spaces: bool,
    /// Whether a space is put before a text, where not tokenizer.json alone says it.
    pub prefix_space: Option<bool>,
    /// From config.json; 0 if it has none.
    pub model_vocab_size: u64,
}

#[derive(Clone)]
pub struct TemplateSource {
    pub file: String,
    pub source: String,
}

/// The bytes of a file, or None if there is no such file.
fn read_file(path: &Path, max_bytes: u64) -> Outcome<Option<Vec<u8>>> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::invalid(format!("{name}: cannot be opened: {error}"))),
    };
    if !file.metadata().map(|data| data.is_file()).unwrap_or(false) {
        return Err(Failure::invalid(format!("{name}: is not a regular file")));
    }
    let mut bytes = Vec::new();
    match file.take(max_bytes + 1).read_to_end(&mut bytes) {
        Err(error) => Err(Failure::invalid(format!("{name}: cannot be read: {error}"))),
        Ok(size) if size as u64 > max_bytes => {
            Err(Failure::invalid(format!("{name}: is larger than {max_bytes} bytes")))
        }
        Ok(_) => Ok(Some(bytes)),
    }
}

fn read_text(path: &Path, max_bytes: u64) -> Outcome<Option<String>> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match read_file(path, max_bytes)? {
        None => Ok(None),
        Some(bytes) => match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(error) => Err(Failure::invalid(format!(
                "{name}: is not UTF-8 (byte {})",
                error.utf8_error().valid_up_to()
            ))),
        },
    }
}

/// A JSON object; an empty one if there is no such file.
fn read_object(path: &Path) -> Outcome<Map<String, Value>> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some(text) = read_text(path, MAX_CONFIG_BYTES)? else {
        return Ok(Map::new());
    };
    match serde_json::from_str(&text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => {
            Err(Failure::invalid(format!("{name}: must hold a JSON object, not {}", kind(&other))))
        }
        Err(error) => Err(Failure::invalid(format!("{name}: is not valid JSON: {error}"))),
    }
}

pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The bytes of tokenizer.json, or of what stands for it; NOT_FOUND if the folder has neither.
pub fn read_tokenizer(folder: &Path) -> Outcome<Vec<u8>> {
    if let Some(bytes) = read_file(&folder.join("tokenizer.json"), MAX_TOKENIZER_BYTES)? {
        return Ok(bytes);
    }
    let merges = read_text(&folder.join("merges.txt"), MAX_CONFIG_BYTES)?;
    let config = read_object(&folder.join("tokenizer_config.json"))?;
    match merges.filter(|_| is_gpt2(folder, &config)) {
        None => Err(Failure::new(NOT_FOUND, "the model folder has no tokenizer.json")),
        Some(merges) => {
            let vocab = read_object(&folder.join("vocab.json"))?;
            Ok(byte_level_bpe::description(vocab, &merges, &config)?.to_string().into_bytes())
        }
    }
}

/// Whether transformers takes GPT-2's tokenizer for the folder: by its class, or of an OPT model.
fn is_gpt2(folder: &Path, config: &Map<String, Value>) -> bool {
    match config.get("tokenizer_class").and_then(Value::as_str) {
        Some(class) => class.trim_end_matches("Fast") == "GPT2Tokenizer",
        None => read_object(&folder.join("config.json"))
            .is_ok_and(|model| model.get("model_type").and_then(Value::as_str) == Some("opt")),
    }
}

/// transformers makes the pre-tokenizers of these classes anew.
fn prefix_space(folder: &Path, config: &Map<String, Value>) -> Outcome<Option<bool>> {
    let class = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
    if !is_gpt2(folder, config) && class.trim_end_matches("Fast") != "GPTNeoXTokenizer" {
        return Ok(None);
    }
    flag(config, "add_prefix_space").map(Some)
}

pub fn read_config(folder: &Path) -> Outcome<TextConfig> {
    const FILE: &str = "tokenizer_config.json";
    let mut object = read_object(&folder.join(FILE))?;
    let mut config = TextConfig {
        split_special_tokens: flag(&object, "split_special_tokens")?,
        clean_up_spaces: flag(&object, "clean_up_tokenization_spaces")?,
        prefix_space: prefix_space(folder, &object)?,
        model_vocab_size: model_vocab_size(folder),
        ..TextConfig::default()
    };
    config.templates = read_templates(folder, object.remove("chat_template"))?;
    match object.remove("added_tokens_decoder") {
        None | Some(Value::Null) => {
            const MAP: &str = "special_tokens_map.json";
            for (key, value) in read_object(&folder.join(MAP))? {
                check_token_field(MAP, &key, &value)?;
                object.insert(key, value);
            }
        }
        Some(value) => config.added_tokens = added_tokens(FILE, value)?,
    }
    collect_tokens(FILE, &object, &mut config)?;
    Ok(config)
}

fn flag(object: &Map<String, Value>, key: &str) -> Outcome<bool> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(other) => Err(Failure::invalid(format!(
            "tokenizer_config.json: {key} must be true or false, not {}",
            kind(other)
        ))),
    }
}

/// config.json is the model loader's to judge; here it only widens the range of valid ids.
fn model_vocab_size(folder: &Path) -> u64 {
    let Ok(object) = read_object(&folder.join("config.json")) else {
        return 0;
    };
    let nested = object.get("text_config").and_then(|text| text.get("vocab_size"));
    object.get("vocab_size").or(nested).and_then(Value::as_u64).unwrap_or(0)
}

fn is_named(key: &str) -> bool {
    key.ends_with("_token")
}

fn check_token_field(file: &str, key: &str, value: &Value) -> Outcome<()> {
    if NAMED_TOKENS.contains(&key) && !value.is_null() {
        token(file, key, value)?;
    }
    Ok(())
}

fn token(file: &str, key: &str, value: &Value) -> Outcome<ConfigToken> {
    let bad = |what: &str| {
        Failure::invalid(format!(
            "{file}: {key} must be a string or an object with a string \"content\", not {what}"
        ))
    };
    match value {
        Value::String(text) => Ok(ConfigToken::Text(text.clone())),
        Value::Object(object) => {
            let Some(Value::String(content)) = object.get("content") else {
                return Err(bad("an object without it"));
            };
            let property = |name: &str, missing: bool| match object.get(name) {
                Some(Value::Bool(value)) => *value,
                _ => missing,
            };
            let special = property("special", true);
            Ok(ConfigToken::Full(AddedToken {
                content: content.clone(),
                single_word: property("single_word", false),
                lstrip: property("lstrip", false),
                rstrip: property("rstrip", false),
                normalized: property("normalized", !special),
                special,
            }))
        }
        other => Err(bad(kind(other))),
    }
}

fn added_tokens(file: &str, value: Value) -> Outcome<Vec<AddedToken>> {
    let Value::Object(object) = value else {
        return Err(Failure::invalid(format!(
            "{file}: added_tokens_decoder must be an object, not {}",
            kind(&value)
        )));
    };
    let mut tokens = Vec::new();
    for (id, value) in &object {
        let field = format!("added_tokens_decoder[\"{id}\"]");
        let number: u32 = id
            .parse()
            .map_err(|_| Failure::invalid(format!("{file}: {field}: the key is not a token id")))?;
        match token(file, &field, value)? {
            ConfigToken::Full(mut token) => {
                token.special = value.get("special").and_then(Value::as_bool).unwrap_or(false);
                tokens.push((number, token));
            }
            ConfigToken::Text(_) => {
                return Err(Failure::invalid(format!("{file}: {field} must be an object")));
            }
        }
    }
    tokens.sort_by_key(|(id, _)| *id);
    Ok(tokens.into_iter().map(|(_, token)| token).collect())
}

fn collect_tokens(file: &str, object: &Map<String, Value>, config: &mut TextConfig) -> Outcome<()> {
    for (key, value) in object {
        if NAMED_TOKENS.contains(&key.as_str()) {
            if !value.is_null() {
                config.named_tokens.push((key.clone(), token(file, key, value)?));
            }
        } else if is_named(key) && (value.is_string() || value.get("content").is_some()) {
            config.named_tokens.push((key.clone(), token(file, key, value)?));
        }
    }
    let absent = |value: &&Value| !value.is_null();
    let (key, extra) = match object.get("extra_special_tokens").filter(absent) {
        Some(value) => ("extra_special_tokens", value),
        None => match object.get("additional_special_tokens").filter(absent) {
            Some(value) => ("additional_special_tokens", value),
            None => return Ok(()),
        },
    };
    match extra {
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                config.extra_tokens.push(token(file, &format!("{key}[{i}]"), item)?);
            }
        }
        Value::Object(items) => {
            for (name, item) in items {
                let value = token(file, &format!("{key}.{name}"), item)?;
                config.named_tokens.push((name.clone(), value));
            }
        }
        other => {
            return Err(Failure::invalid(format!(
                "{file}: {key} must be an array of tokens, not {}",
                kind(other)
            )));
        }
    }
    Ok(())
}

type Templates = BTreeMap<String, TemplateSource>;

fn insert(templates: &mut Templates, name: &str, file: &str, source: String) -> Outcome<()> {
    if source.len() as u64 > MAX_TEMPLATE_BYTES {
        return Err(Failure::invalid(format!(
            "{file}: the chat template is larger than {MAX_TEMPLATE_BYTES} bytes"
        )));
    }
    templates.insert(name.to_string(), TemplateSource { file: file.to_string(), source });
    Ok(())
}

fn read_templates(folder: &Path, in_config: Option<Value>) -> Outcome<Templates> {
    let mut templates = Templates::new();
    if let Some(source) = read_text(&folder.join("chat_template.jinja"), MAX_TEMPLATE_BYTES)? {
        insert(&mut templates, "default", "chat_template.jinja", source)?;
    }
    for entry in fs::read_dir(folder.join("chat_templates")).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(stem) = name.strip_suffix(".jinja") else {
            continue;
        };
        if let Some(source) = read_text(&entry.path(), MAX_TEMPLATE_BYTES)? {
            insert(&mut templates, stem, &format!("chat_templates/{name}"), source)?;
        }
    }
    if templates.is_empty() {
        add_template_value(&mut templates, "tokenizer_config.json", in_config)?;
    }
    if templates.is_empty() {
        let mut legacy = read_object(&folder.join("chat_template.json"))?;
        let value = legacy.remove("chat_template");
        add_template_value(&mut templates, "chat_template.json", value)?;
    }
    Ok(templates)
}

/// `chat_template` of a JSON file: one template, or a list of {"name", "template"}.
fn add_template_value(templates: &mut Templates, file: &str, value: Option<Value>) -> Outcome<()> {
    match value {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(source)) => insert(templates, "default", file, source),
        Some(Value::Array(items)) => {
            for (i, item) in items.iter().enumerate() {
                let (Some(name), Some(source)) = (
                    item.get("name").and_then(Value::as_str),
                    item.get("template").and_then(Value::as_str),
                ) else {
                    return Err(Failure::invalid(format!(
                        "{file}: chat_template[{i}] must have the strings \"name\" and \"template\""
                    )));
                };
                insert(templates, name, file, source.to_string())?;
            }
            Ok(())
        }
        Some(other) => Err(Failure::invalid(format!(
            "{file}: chat_template must be a string or an array, not {}",
            kind(&other)
        ))),
    }
}
