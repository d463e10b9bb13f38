//! One model's tokenizer and chat templates. Immutable after load, so any thread may use it.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;

use serde_json::Value;
use tokenizers::models::ModelWrapper;
use tokenizers::{AddedToken, Model, NormalizedString, Normalizer, PreTokenizerWrapper, Tokenizer};

use crate::chunk_cache::CacheCounts;
use crate::failure::{Failure, Outcome, OUT_OF_RANGE};
use crate::model_files::{self, ConfigToken, TextConfig};
use crate::parts::Parts;
use crate::template::Templates;

const MAX_TOKEN_ID: u64 = i32::MAX as u64;
/// Finding the spaces before a token that swallows them reads the text from its start, each time.
const MAX_LSTRIP_WORK: usize = 4 << 30;

#[derive(Clone, Copy, PartialEq)]
pub enum DecoderKind {
    /// Each token is a run of bytes and the text is their concatenation.
    ByteLevel,
    Other,
}

pub struct Codec {
    tokenizer: Tokenizer,
    decoder_kind: DecoderKind,
    byte_fallback: bool,
    /// What stands for a space inside tokens ("\u{2581}"), if the decoder replaces it.
    space_marker: Option<String>,
    /// What marks a token that goes on in the same word ("##"), if there is such a mark.
    continuation: Option<String>,
    clean_up_spaces: bool,
    lstrip_tokens: Vec<String>,
    vocab_size: u32,
    max_token_bytes: usize,
    named_ids: Vec<(String, i32)>,
    /// Only for tokenizers that are known well enough.
    parts: Option<Parts>,
    pub templates: Templates,
}

/// What one token stands for.
pub struct TokenPiece {
    pub bytes: Vec<u8>,
    pub special: bool,
}

impl Codec {
    pub fn load(folder: &Path) -> Outcome<Codec> {
        let bytes = model_files::read_tokenizer(folder)?;
        let config = model_files::read_config(folder)?;
        let mut tokenizer = parse_tokenizer(&bytes)?;
        if let Some(space) = config.prefix_space {
            set_prefix_space(&mut tokenizer, space);
        }
        add_config_tokens(&mut tokenizer, &config)?;
        tokenizer.set_encode_special_tokens(config.split_special_tokens);
        let templates = Templates::new(&config)?;
        let max_id = max_token_id(&tokenizer)?;
        let decoder = serde_json::to_value(tokenizer.get_decoder()).unwrap_or(Value::Null);
        let is_bpe = matches!(tokenizer.get_model(), ModelWrapper::BPE(_));
        let added = tokenizer.get_added_tokens_decoder();
        let lstrip = added.values().filter(|token| token.lstrip);
        let named_ids = config.named_tokens.iter().filter_map(|(name, token)| {
            tokenizer.token_to_id(token.content()).map(|id| (name.clone(), id as i32))
        });
        let mut codec = Codec {
            decoder_kind: if only_byte_level(&decoder) {
                DecoderKind::ByteLevel
            } else {
                DecoderKind::Other
            },
            byte_fallback: find_decoder(&decoder, "ByteFallback").is_some(),
            space_marker: space_marker(&decoder),
            continuation: find_decoder(&decoder, "WordPiece")
                .and_then(|part| part.get("prefix"))
                .and_then(|prefix| prefix.as_str().map(str::to_string)),
            clean_up_spaces: config.clean_up_spaces && !is_bpe,
            lstrip_tokens: lstrip.map(|token| token.content.clone()).collect(),
            vocab_size: (max_id + 1).max(config.model_vocab_size.min(MAX_TOKEN_ID)) as u32,
            named_ids: named_ids.collect(),
            templates,
            max_token_bytes: 0,
            parts: None,
            tokenizer,
        };
        codec.max_token_bytes = codec.find_max_token_bytes(max_id as i32);
        let parts = || Parts::new(&codec.tokenizer, byte_level_bytes);
        codec.parts = catch_unwind(AssertUnwindSafe(parts)).unwrap_or(None);
        Ok(codec)
    }

    /// No token stands for more bytes of text; 0 if this tokenizer has no such bound.
    pub fn max_token_bytes(&self) -> usize {
        self.max_token_bytes
    }

    fn find_max_token_bytes(&self, max_id: i32) -> usize {
        // Spaces that an added token swallows, unknown characters that become one token or none,
        // and normalizers and patterns that drop text have no bound. NFC makes text shorter by at
        // most this much.
        const MAX_COMPOSITION: usize = 4;
        let added = self.tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        let swallows = added.values().any(|token| token.lstrip || token.rstrip);
        let Ok(normalizer) = serde_json::to_value(self.tokenizer.get_normalizer()) else {
            return 0;
        };
        let kinds = normalizer_kinds(&normalizer);
        let factor = if kinds.iter().all(|kind| *kind == "Prepend" || *kind == "Replace") {
            1
        } else if kinds == ["NFC"] {
            MAX_COMPOSITION
        } else {
            0
        };
        if swallows || !self.has_token_for_each_byte() || factor == 0 {
            return 0;
        }
        let vocab = self.tokenizer.get_vocab(true);
        let ids = vocab.into_values();
        let ids = ids.filter(|id| i32::try_from(*id).is_ok_and(|id| id <= max_id));
        let lengths = ids.map(|id| match added.get(&id) {
            Some(token) => self.added_bytes(&token.content),
            None => self.model_bytes(id),
        });
        lengths.max().unwrap_or(0) * factor
    }

    /// Every byte of a text is part of one of its tokens.
    fn has_token_for_each_byte(&self) -> bool {
        let ModelWrapper::BPE(bpe) = self.tokenizer.get_model() else { return false };
        let Ok(pre_tokenizer) = serde_json::to_value(self.tokenizer.get_pre_tokenizer()) else {
            return false;
        };
        let known = |token: String| bpe.token_to_id(&token).is_some();
        if !keeps_all(&pre_tokenizer) {
            return false;
        }
        if has_byte_level(&pre_tokenizer) {
            let marks = [&bpe.continuing_subword_prefix, &bpe.end_of_word_suffix];
            return self.decoder_kind == DecoderKind::ByteLevel
                && marks.into_iter().flatten().all(String::is_empty)
                && byte_level_table().into_keys().all(|c| known(c.to_string()));
        }
        bpe.byte_fallback && (0..=255u8).all(|byte| known(format!("<{byte:#04X}>")))
    }

    /// Of normalized text at most; that of a word is spelled with its marks.
    fn model_bytes(&self, id: u32) -> usize {
        let token = self.tokenizer.id_to_token(id).unwrap_or_default();
        match self.decoder_kind {
            DecoderKind::ByteLevel => byte_level_bytes(&token).len(),
            DecoderKind::Other => token.len(),
        }
    }

    fn added_bytes(&self, content: &str) -> usize {
        let mut normalized = NormalizedString::from(content);
        if let Some(normalizer) = self.tokenizer.get_normalizer() {
            if normalizer.normalize(&mut normalized).is_err() {
                return content.len();
            }
        }
        content.len().max(normalized.get().len())
    }

    /// Texts are tokenized in parts, not as a whole.
    pub fn has_parts(&self) -> bool {
        self.parts.is_some()
    }

    pub fn cache_counts(&self) -> CacheCounts {
        self.parts.as_ref().map(Parts::cache_counts).unwrap_or_default()
    }

    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// The id of bos_token, eos_token, ...; -1 if the model has none.
    pub fn named_id(&self, name: &str) -> i32 {
        self.named_ids.iter().find(|(key, _)| key == name).map_or(-1, |(_, id)| *id)
    }

    pub fn decoder_kind(&self) -> DecoderKind {
        self.decoder_kind
    }

    pub fn encode(&self, text: &[u8], add_special_tokens: bool) -> Outcome<Vec<u32>> {
        let text = std::str::from_utf8(text).map_err(|error| {
            Failure::invalid(format!("the text is not UTF-8 (byte {})", error.valid_up_to()))
        })?;
        for token in &self.lstrip_tokens {
            if text.matches(token.as_str()).count().saturating_mul(text.len()) > MAX_LSTRIP_WORK {
                return Err(Failure::invalid(format!(
                    "the text has the special token {token:?} too often for its length; shorten it"
                )));
            }
        }
        // A pattern that needs too many steps for a text ends in a panic.
        let encode = || match &self.parts {
            Some(parts) => parts.encode(&self.tokenizer, text, add_special_tokens),
            None => {
                let encoding = self.tokenizer.encode_fast(text, add_special_tokens)?;
                Ok(encoding.get_ids().to_vec())
            }
        };
        match catch_unwind(AssertUnwindSafe(encode)) {
            Ok(Ok(ids)) => Ok(ids),
            Err(_) => Err(Failure::invalid(
                "the text cannot be tokenized: the tokenizer's patterns fail on it".to_string(),
            )),
            Ok(Err(error)) => {
                Err(Failure::invalid(format!("the text cannot be tokenized: {error}")))
            }
        }
    }

    pub fn decode(&self, ids: &[i32], skip_special_tokens: bool) -> Outcome<String> {
        let ids = ids.iter().map(|id| self.check_id(*id)).collect::<Outcome<Vec<u32>>>()?;
        let text = self.decode_known(&ids, skip_special_tokens)?;
        Ok(if self.clean_up_spaces { clean_up(&text) } else { text })
    }

    /// Without the clean-up of spaces.
    pub fn decode_known(&self, ids: &[u32], skip_special_tokens: bool) -> Outcome<String> {
        match self.tokenizer.decode(ids, skip_special_tokens) {
            Ok(text) => Ok(text),
            Err(error) => Err(Failure::invalid(format!("the tokens cannot be decoded: {error}"))),
        }
    }

    pub fn cleans_up_spaces(&self) -> bool {
        self.clean_up_spaces
    }

    pub fn check_id(&self, id: i32) -> Outcome<u32> {
        match u32::try_from(id) {
            Ok(id) if id < self.vocab_size => Ok(id),
            _ => Err(Failure::new(
                OUT_OF_RANGE,
                format!("token id {id} is not in the vocabulary [0, {})", self.vocab_size),
            )),
        }
    }

    fn decoded_token(&self, id: u32) -> Option<String> {
        let added = self.tokenizer.get_added_vocabulary().simple_id_to_token(id);
        added.or_else(|| self.tokenizer.id_to_token(id))
    }

    /// True for an id that decoding passes over: unused, or special and not wanted.
    pub fn is_skipped(&self, id: u32, skip_special_tokens: bool) -> bool {
        match self.decoded_token(id) {
            None => true,
            Some(token) => {
                skip_special_tokens
                    && self.tokenizer.get_added_vocabulary().is_special_token(&token)
            }
        }
    }

    /// The bytes that a ByteLevel decoder makes of a token.
    pub fn decoded_bytes(&self, id: u32) -> Vec<u8> {
        self.decoded_token(id).map(|token| byte_level_bytes(&token)).unwrap_or_default()
    }

    /// A token on its own; empty for an unused id.
    pub fn piece(&self, id: i32) -> Outcome<TokenPiece> {
        let id = self.check_id(id)?;
        let added = self.tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        if let Some(token) = added.get(&id) {
            let bytes = token.content.clone().into_bytes();
            return Ok(TokenPiece { bytes, special: token.special });
        }
        let Some(token) = self.tokenizer.id_to_token(id) else {
            return Ok(TokenPiece { bytes: Vec::new(), special: false });
        };
        Ok(TokenPiece { bytes: self.token_bytes(token), special: false })
    }

    fn token_bytes(&self, token: String) -> Vec<u8> {
        if self.decoder_kind == DecoderKind::ByteLevel {
            return byte_level_bytes(&token);
        }
        if self.byte_fallback {
            let hex = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
            let hex = hex.filter(|hex| hex.len() == 2);
            if let Some(byte) = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                return vec![byte];
            }
        }
        if let Some(prefix) = &self.continuation {
            return match token.strip_prefix(prefix.as_str()) {
                Some(rest) => rest.as_bytes().to_vec(),
                None => format!(" {token}").into_bytes(),
            };
        }
        match &self.space_marker {
            Some(marker) => token.replace(marker.as_str(), " ").into_bytes(),
            None => token.into_bytes(),
        }
    }
}

fn byte_level_bytes(token: &str) -> Vec<u8> {
    // The decoder's own table; its text is lossy, so ask character by character.
    thread_local! {
        static TABLE: std::collections::HashMap<char, u8> = byte_level_table();
    }
    TABLE.with(|table| {
        let bytes: Option<Vec<u8>> = token.chars().map(|c| table.get(&c).copied()).collect();
        bytes.unwrap_or_else(|| token.as_bytes().to_vec())
    })
}

/// GPT-2's map of bytes to printable characters, inverted.
fn byte_level_table() -> std::collections::HashMap<char, u8> {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 256;
    let mut table = std::collections::HashMap::new();
    for byte in 0..=255u8 {
        let code = if printable(byte) {
            u32::from(byte)
        } else {
            next += 1;
            next - 1
        };
        table.insert(char::from_u32(code).unwrap_or('\0'), byte);
    }
    table
}

fn parse_tokenizer(bytes: &[u8]) -> Outcome<Tokenizer> {
    let defect = |what: String| Failure::invalid(format!("tokenizer.json: {what}"));
    let parsed = catch_unwind(AssertUnwindSafe(|| {
        let mut tokenizer = Tokenizer::from_bytes(bytes).map_err(|error| error.to_string())?;
        tokenizer.with_truncation(None).map_err(|error| error.to_string())?;
        tokenizer.with_padding(None);
        Ok(tokenizer)
    }));
    match parsed {
        Ok(result) => result.map_err(defect),
        Err(_) => Err(defect("it describes a tokenizer that cannot be built".to_string())),
    }
}

fn set_prefix_space(tokenizer: &mut Tokenizer, space: bool) {
    if let Some(PreTokenizerWrapper::ByteLevel(byte_level)) = tokenizer.get_pre_tokenizer() {
        let changed = byte_level.add_prefix_space(space);
        tokenizer.with_pre_tokenizer(Some(changed));
    }
}

fn max_token_id(tokenizer: &Tokenizer) -> Outcome<u64> {
    let vocab = tokenizer.get_vocab(true);
    match vocab.values().max() {
        None => Err(Failure::invalid("tokenizer.json: the vocabulary is empty")),
        Some(id) if u64::from(*id) >= MAX_TOKEN_ID => {
            Err(Failure::invalid(format!("tokenizer.json: token id {id} is too large")))
        }
        Some(id) => Ok(u64::from(*id)),
    }
}

/// Tokens that only the configuration names become part of the vocabulary, and named tokens
/// become special, as in transformers.
fn add_config_tokens(tokenizer: &mut Tokenizer, config: &TextConfig) -> Outcome<()> {
    let defect = |error: tokenizers::Error| {
        Failure::invalid(format!("tokenizer_config.json: its tokens cannot be added: {error}"))
    };
    tokenizer.add_tokens(config.added_tokens.iter().cloned()).map_err(defect)?;
    let mut special = Vec::new();
    for (_, token) in &config.named_tokens {
        let known = tokenizer.get_added_tokens_decoder();
        let known = known.into_values().find(|known| known.content == token.content());
        special.push(known.unwrap_or_else(|| as_special(token)));
    }
    special.extend(config.extra_tokens.iter().map(as_special));
    for token in &mut special {
        token.special = true;
    }
    tokenizer.add_special_tokens(special).map_err(defect)?;
    Ok(())
}

fn as_special(token: &ConfigToken) -> AddedToken {
    match token {
        ConfigToken::Text(text) => AddedToken::from(text.clone(), true),
        ConfigToken::Full(token) => token.clone(),
    }
}

fn find_decoder<'a>(decoder: &'a Value, kind: &str) -> Option<&'a Value> {
    if decoder.get("type").and_then(Value::as_str) == Some(kind) {
        return Some(decoder);
    }
    let parts = decoder.get("decoders").and_then(Value::as_array)?;
    parts.iter().find_map(|part| find_decoder(part, kind))
}

/// The types of the normalizers, in order.
fn normalizer_kinds(normalizer: &Value) -> Vec<&str> {
    if let Some(parts) = normalizer.get("normalizers").and_then(Value::as_array) {
        return parts.iter().flat_map(normalizer_kinds).collect();
    }
    let content = normalizer.get("content").and_then(Value::as_str).unwrap_or_default();
    match normalizer.get("type").and_then(Value::as_str) {
        Some("Replace") => match normalizer.pointer("/pattern/String").and_then(Value::as_str) {
            Some(pattern) if pattern.len() <= content.len() => vec!["Replace"],
            _ => vec!["ReplaceByLess"],
        },
        kind => kind.into_iter().collect(),
    }
}

/// No part of a text is left away.
fn keeps_all(pre_tokenizer: &Value) -> bool {
    match pre_tokenizer["type"].as_str() {
        None => pre_tokenizer.is_null(),
        Some("Sequence") => pre_tokenizer["pretokenizers"]
            .as_array()
            .is_some_and(|parts| parts.iter().all(keeps_all)),
        Some("Split" | "Punctuation") => {
            pre_tokenizer["behavior"].as_str().is_some_and(|behavior| behavior != "Removed")
        }
        Some(kind) => matches!(kind, "ByteLevel" | "Metaspace" | "Digits"),
    }
}

fn has_byte_level(pre_tokenizer: &Value) -> bool {
    let parts = pre_tokenizer["pretokenizers"].as_array();
    pre_tokenizer["type"] == "ByteLevel"
        || parts.is_some_and(|parts| parts.iter().any(has_byte_level))
}

fn only_byte_level(decoder: &Value) -> bool {
    match decoder.get("type").and_then(Value::as_str) {
        Some("ByteLevel") => true,
        Some("Sequence") => match decoder.get("decoders").and_then(Value::as_array) {
            Some(parts) => parts.len() == 1 && only_byte_level(&parts[0]),
            None => false,
        },
        _ => false,
    }
}

fn space_marker(decoder: &Value) -> Option<String> {
    if let Some(part) = find_decoder(decoder, "Metaspace") {
        return part.get("replacement").and_then(|text| text.as_str().map(str::to_string));
    }
    let part = find_decoder(decoder, "Replace")?;
    if part.get("content").and_then(Value::as_str) != Some(" ") {
        return None;
    }
    part.pointer("/pattern/String").and_then(|text| text.as_str().map(str::to_string))
}

/// transformers' clean_up_tokenization, for tokenizers that are not BPE.
const CLEAN_UPS: [(&str, &str); 10] = [
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
];

pub fn clean_up(text: &str) -> String {
    CLEAN_UPS.iter().fold(text.to_string(), |text, (from, to)| text.replace(from, to))
}

/// The length of the text whose clean-up does not depend on what follows: before a space that
/// stands at no apostrophe, as only the changes of those go beyond the next word's start.
pub fn num_clean_bytes(text: &str) -> usize {
    let mut words = text.as_bytes().windows(3);
    let cut = words.rposition(|bytes| bytes[1] == b' ' && bytes[0] != b'\'' && bytes[2] != b'\'');
    cut.map_or(0, |at| at + 1)
}
