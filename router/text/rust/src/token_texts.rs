//! The bytes that tokens stand for, one after another.

use std::collections::BTreeMap;

use tokenizers::Tokenizer;

/// Those of larger ids are left out.
const NUM_IDS: u32 = 1 << 24;

#[derive(Default)]
pub struct TokenTexts {
    bytes: Vec<u8>,
    /// Of each id; those of no token are empty.
    ends: Vec<u32>,
}

impl TokenTexts {
    /// Of a byte-level tokenizer; `bytes_of` is what a token of its model stands for.
    pub fn new(tokenizer: &Tokenizer, bytes_of: impl Fn(&str) -> Vec<u8>) -> TokenTexts {
        let of_model = tokenizer.get_vocab(false).into_iter();
        let added = tokenizer.get_added_tokens_decoder().into_iter();
        let all: BTreeMap<u32, Vec<u8>> = of_model
            .map(|(token, id)| (id, bytes_of(&token)))
            .chain(added.map(|(id, token)| (id, token.content.into_bytes())))
            .filter(|(id, _)| *id < NUM_IDS)
            .collect();
        let mut texts = TokenTexts::default();
        for (id, bytes) in all {
            texts.ends.resize(id as usize, texts.bytes.len() as u32);
            texts.bytes.extend_from_slice(&bytes);
            texts.ends.push(texts.bytes.len() as u32);
        }
        texts
    }

    /// True if that is what they stand for together, and each is known here.
    pub fn spell(&self, ids: impl Iterator<Item = u32>, text: &[u8]) -> bool {
        let mut rest = text;
        for id in ids {
            match self.of(id).and_then(|bytes| rest.strip_prefix(bytes)) {
                Some(behind) => rest = behind,
                None => return false,
            }
        }
        rest.is_empty()
    }

    fn of(&self, id: u32) -> Option<&[u8]> {
        let end = *self.ends.get(id as usize)?;
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before as usize]);
        Some(&self.bytes[start as usize..end as usize])
    }
}
