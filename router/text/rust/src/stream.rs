//! Turns the tokens of one sequence into text as they come.

use std::sync::Arc;

use crate::codec::{clean_up, num_clean_bytes, Codec, DecoderKind};
use crate::failure::Outcome;

/// Tokens held back at most, waiting for the rest of a character.
const MAX_HELD_TOKENS: usize = 32;
/// Bytes held back at most, waiting for a space.
const MAX_UNCLEAN_BYTES: usize = 256;

pub struct Decoder {
    codec: Arc<Codec>,
    skip_special: bool,
    /// ByteLevel: the bytes of a character that is not complete; at most three.
    pending: Vec<u8>,
    /// Otherwise: the last tokens, of which the first `num_read` gave `read_text`.
    ids: Vec<u32>,
    num_read: usize,
    read_text: String,
    /// Text whose spaces are not cleaned up yet.
    unclean: String,
}

impl Decoder {
    pub fn new(codec: Arc<Codec>, skip_special: bool) -> Decoder {
        Decoder {
            codec,
            skip_special,
            pending: Vec::new(),
            ids: Vec::new(),
            num_read: 0,
            read_text: String::new(),
            unclean: String::new(),
        }
    }

    /// The text that became final with this token.
    pub fn push(&mut self, id: i32) -> Outcome<String> {
        let id = self.codec.check_id(id)?;
        if self.codec.is_skipped(id, self.skip_special) {
            return Ok(String::new());
        }
        match self.codec.decoder_kind() {
            DecoderKind::ByteLevel => {
                self.pending.extend(self.codec.decoded_bytes(id));
                Ok(take_text(&mut self.pending))
            }
            DecoderKind::Other => {
                let piece = self.push_window(id)?;
                Ok(self.clean(piece))
            }
        }
    }

    /// What is still held, after the last token. The decoder is then as new.
    pub fn flush(&mut self) -> Outcome<String> {
        if !self.pending.is_empty() {
            let text = String::from_utf8_lossy(&self.pending).into_owned();
            self.pending.clear();
            return Ok(text);
        }
        let mut text = std::mem::take(&mut self.unclean);
        if self.ids.len() > self.num_read {
            let window = self.codec.decode_known(&self.ids, self.skip_special)?;
            text += &self.gain(&window)?;
        }
        if self.codec.cleans_up_spaces() {
            text = clean_up(&text);
        }
        self.ids.clear();
        self.num_read = 0;
        self.read_text.clear();
        Ok(text)
    }

    fn clean(&mut self, piece: String) -> String {
        if !self.codec.cleans_up_spaces() {
            return piece;
        }
        self.unclean += &piece;
        let length = match self.unclean.len() {
            length if length > MAX_UNCLEAN_BYTES => length,
            _ => num_clean_bytes(&self.unclean),
        };
        let rest = self.unclean.split_off(length);
        clean_up(&std::mem::replace(&mut self.unclean, rest))
    }

    /// A token's text may depend on the one before (spaces, bytes of one character), so the new
    /// text is what the window gains over the part of it that was already given out.
    fn push_window(&mut self, id: u32) -> Outcome<String> {
        self.ids.push(id);
        let text = self.codec.decode_known(&self.ids, self.skip_special)?;
        let held = self.ids.len() - self.num_read;
        let incomplete = text.ends_with('\u{FFFD}') || text == self.read_text;
        if incomplete && held < MAX_HELD_TOKENS {
            return Ok(String::new());
        }
        let piece = self.gain(&text)?;
        self.ids.drain(..self.num_read);
        self.num_read = self.ids.len();
        self.read_text = self.codec.decode_known(&self.ids, self.skip_special)?;
        Ok(piece)
    }

    /// What the text of the window has beyond the part that was given out.
    fn gain(&self, window: &str) -> Outcome<String> {
        match window.strip_prefix(self.read_text.as_str()) {
            Some(piece) => Ok(piece.to_string()),
            // A byte that belongs to no character changed the text of the bytes before it.
            None => self.codec.decode_known(&self.ids[self.num_read..], self.skip_special),
        }
    }
}

/// Takes the text that later bytes cannot change, with U+FFFD for what is no UTF-8: together with
/// a last lossy conversion of the rest this equals the lossy conversion of all bytes.
fn take_text(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut rest = 0;
    loop {
        match std::str::from_utf8(&bytes[rest..]) {
            Ok(valid) => {
                text.push_str(valid);
                rest = bytes.len();
                break;
            }
            Err(error) => {
                let valid = &bytes[rest..rest + error.valid_up_to()];
                text.push_str(&String::from_utf8_lossy(valid));
                rest += error.valid_up_to();
                match error.error_len() {
                    Some(length) => {
                        text.push('\u{FFFD}');
                        rest += length;
                    }
                    None => break,
                }
            }
        }
    }
    bytes.drain(..rest);
    text
}
