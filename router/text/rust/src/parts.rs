//! Tokenizing a text in parts. A text is cut only where no token and no match of the tokenizer's
//! pattern can lie across, and where no match looks beyond; so the tokens of a text are those of
//! its parts, one after another. Whole chunks of parts that came lately are found in a cache. Of
//! others many parts are one word of the vocabulary each: their tokens are looked up in a table,
//! which is made once.

use std::collections::HashMap;

use serde_json::{to_value, Value};
use tokenizers::models::ModelWrapper;
use tokenizers::Tokenizer;

use crate::chunk_cache::{CacheCounts, ChunkCache};
use crate::token_texts::TokenTexts;

/// Of Llama 3, Qwen 2 and Mistral Nemo; that of GPT-2 is built into ByteLevel. Each matches any
/// text without a gap; none looks back. A match that holds a visible character goes on neither with
/// a space nor, after a letter, with a mark of `MARKS`; only runs of spaces look ahead, by one
/// character.
const PATTERNS: [&str; 3] = [
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| \
     ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| \
     ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|\
     [^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\
     \\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
];
const MARKS: &[u8] = b".,;:!?";
const MAX_WORD_BYTES: usize = 32;
/// Fewer known parts than this between unknown ones are tokenized along with them: a call costs
/// about as much as their look-ups save.
const MIN_KNOWN: usize = 4;
/// A chunk ends at the first cut behind this many bytes; so texts that begin alike have the same
/// first chunks. A shorter rest is not worth a place in the cache.
const CHUNK_BYTES: usize = 8 << 10;

pub struct Parts {
    known: HashMap<Box<[u8]>, u32>,
    /// The special tokens around each text.
    before: Vec<u32>,
    after: Vec<u32>,
    cache: ChunkCache,
}

impl Parts {
    /// None for a tokenizer of which it is not known where a text can be cut. `bytes_of` is what a
    /// token stands for.
    pub fn new(tokenizer: &Tokenizer, bytes_of: impl Fn(&str) -> Vec<u8>) -> Option<Parts> {
        if !can_be_cut(tokenizer) {
            return None;
        }
        let (before, after) = special_tokens(tokenizer)?;
        let mut known = HashMap::new();
        let words = tokenizer.get_vocab(false).into_keys().map(|token| bytes_of(&token));
        for part in words.filter(|bytes| is_word(bytes)).chain(MARKS.iter().map(|c| vec![*c])) {
            let text = std::str::from_utf8(&part).ok()?;
            if let [id] = tokenizer.encode_fast(text, false).ok()?.get_ids() {
                known.insert(part.into_boxed_slice(), *id);
            }
        }
        let cache = ChunkCache::new(TokenTexts::new(tokenizer, bytes_of));
        Some(Parts { known, before, after, cache })
    }

    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        add_special_tokens: bool,
    ) -> tokenizers::Result<Vec<u32>> {
        let mut ids = Vec::with_capacity(text.len() / 4 + 8);
        if add_special_tokens {
            ids.extend(&self.before);
        }
        let mut rest = text;
        while rest.len() > CHUNK_BYTES {
            let (chunk, behind) = rest.split_at(next_cut(rest.as_bytes(), CHUNK_BYTES - 1));
            if !self.cache.find(chunk, &mut ids) {
                let start = ids.len();
                self.encode_chunk(tokenizer, chunk, &mut ids)?;
                self.cache.insert(chunk, &ids[start..]);
            }
            rest = behind;
        }
        self.encode_chunk(tokenizer, rest, &mut ids)?;
        if add_special_tokens {
            ids.extend(&self.after);
        }
        Ok(ids)
    }

    pub fn cache_counts(&self) -> CacheCounts {
        self.cache.counts()
    }

    fn encode_chunk(
        &self,
        tokenizer: &Tokenizer,
        chunk: &str,
        ids: &mut Vec<u32>,
    ) -> tokenizers::Result<()> {
        let mut out = Output { tokenizer, chunk, ids, at: 0 };
        let mut run = Vec::new(); // Tokens of the known parts from `run_start` up to `start`.
        let (mut run_start, mut start) = (0, 0);
        while start < chunk.len() {
            let end = next_cut(chunk.as_bytes(), start);
            match self.known(&chunk.as_bytes()[start..end]) {
                Some(id) => run.push(id),
                None => {
                    if run.len() >= MIN_KNOWN || run_start == out.at {
                        out.push(run_start, &run, start)?;
                    }
                    run.clear();
                    run_start = end;
                }
            }
            start = end;
        }
        out.push(run_start, &run, chunk.len())
    }

    fn known(&self, part: &[u8]) -> Option<u32> {
        if part.len() > MAX_WORD_BYTES {
            return None;
        }
        self.known.get(part).copied()
    }
}

struct Output<'a> {
    tokenizer: &'a Tokenizer,
    chunk: &'a str,
    ids: &'a mut Vec<u32>,
    /// So far the chunk is tokenized.
    at: usize,
}

impl Output<'_> {
    /// Tokenizes up to `run_start`; from there up to `end` the tokens are those of `run`.
    fn push(&mut self, run_start: usize, run: &[u32], end: usize) -> tokenizers::Result<()> {
        if self.at < run_start {
            let part = self.tokenizer.encode_fast(&self.chunk[self.at..run_start], false)?;
            self.ids.extend_from_slice(part.get_ids());
        }
        self.ids.extend_from_slice(run);
        self.at = end;
        Ok(())
    }
}

/// Behind `start`; the end of the text if there is none.
fn next_cut(text: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < text.len() {
        let (left, here) = (text[at - 1], text[at]);
        let is_cut = match here {
            b' ' => left.is_ascii_graphic(),
            _ => MARKS.contains(&here) && left.is_ascii_alphabetic(),
        };
        if is_cut {
            return at;
        }
        at += 1;
    }
    text.len()
}

/// A space and letters.
fn is_word(bytes: &[u8]) -> bool {
    bytes.len() > 1
        && bytes.len() <= MAX_WORD_BYTES
        && bytes[0] == b' '
        && bytes[1..].iter().all(u8::is_ascii_alphabetic)
}

fn can_be_cut(tokenizer: &Tokenizer) -> bool {
    let is_bpe = matches!(tokenizer.get_model(), ModelWrapper::BPE(bpe) if bpe.dropout.is_none());
    let Ok(normalizer) = to_value(tokenizer.get_normalizer()) else { return false };
    let Ok(pre_tokenizer) = to_value(tokenizer.get_pre_tokenizer()) else { return false };
    let Ok(post_processor) = to_value(tokenizer.get_post_processor()) else { return false };
    // What composes with a character before it is neither a space nor a mark.
    let is_nfc = normalizer["type"] == "NFC";
    let added = tokenizer.get_added_tokens_decoder();
    is_bpe
        && (normalizer.is_null() || is_nfc)
        && has_known_pattern(&pre_tokenizer)
        && has_known_template(&post_processor)
        && added.values().all(|token| {
            !token.lstrip
                && !token.rstrip
                && !token.single_word
                && !lies_across_a_cut(&token.content)
                && (!is_nfc || !token.normalized || token.content.is_ascii())
        })
}

/// An added token is found before all else, whatever stands around it.
fn lies_across_a_cut(content: &str) -> bool {
    let bytes = content.as_bytes();
    content.chars().any(char::is_whitespace)
        || bytes.windows(2).any(|two| two[0].is_ascii_alphabetic() && MARKS.contains(&two[1]))
}

fn has_known_pattern(pre_tokenizer: &Value) -> bool {
    let is_byte_level = |part: &Value, use_regex: bool| {
        part["type"] == "ByteLevel"
            && part["add_prefix_space"] == false
            && part["use_regex"] == use_regex
    };
    if is_byte_level(pre_tokenizer, true) {
        return true;
    }
    let Some([split, byte_level]) = pre_tokenizer["pretokenizers"].as_array().map(Vec::as_slice)
    else {
        return false;
    };
    let pattern = split["pattern"]["Regex"].as_str().unwrap_or_default();
    pre_tokenizer["type"] == "Sequence"
        && split["type"] == "Split"
        && split["behavior"] == "Isolated"
        && split["invert"] == false
        && PATTERNS.contains(&pattern)
        && is_byte_level(byte_level, false)
}

fn has_known_template(post_processor: &Value) -> bool {
    match post_processor["type"].as_str() {
        None => post_processor.is_null(),
        Some("Sequence") => post_processor["processors"]
            .as_array()
            .is_some_and(|parts| parts.iter().all(has_known_template)),
        Some(kind) => kind == "ByteLevel" || kind == "TemplateProcessing",
    }
}

/// What stands before and behind the tokens of every text; None if that cannot be told.
fn special_tokens(tokenizer: &Tokenizer) -> Option<(Vec<u32>, Vec<u32>)> {
    let ids = |text: &str, special: bool| {
        Some(tokenizer.encode_fast(text, special).ok()?.get_ids().to_vec())
    };
    let (plain, whole) = (ids("a", false)?, ids("a", true)?);
    if plain.is_empty() {
        return None;
    }
    let at = whole.windows(plain.len()).position(|part| part == plain)?;
    let (before, after) = (whole[..at].to_vec(), whole[at + plain.len()..].to_vec());
    let text = "In the beginning: 1 b";
    let around = [before.clone(), ids(text, false)?, after.clone()].concat();
    (around == ids(text, true)?).then_some((before, after))
}
