//! Tokens of chunks of text that came lately: prompts that begin alike are tokenized once.

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Of one generation; there are two. What a chunk needs besides its text and tokens is counted too.
const MAX_GENERATION_BYTES: usize = 12 << 20;
const ENTRY_BYTES: usize = 128;

/// Any thread. A chunk is found by its whole text, so a hit is never another chunk's tokens.
#[derive(Default)]
pub struct ChunkCache {
    state: Mutex<State>,
}

#[derive(Clone, Copy, Default)]
pub struct CacheCounts {
    pub hits: u64,
    pub misses: u64,
    pub bytes: usize,
}

/// What was not asked for while the young generation filled up goes with the old one.
#[derive(Default)]
struct State {
    young: Generation,
    old: Generation,
    hits: u64,
    misses: u64,
}

#[derive(Default)]
struct Generation {
    tokens: HashMap<Box<str>, Arc<[u32]>>,
    bytes: usize,
}

impl ChunkCache {
    pub fn find(&self, chunk: &str) -> Option<Arc<[u32]>> {
        let mut state = self.lock();
        if let Some(tokens) = state.young.tokens.get(chunk).cloned() {
            state.hits += 1;
            return Some(tokens);
        }
        let Some((text, tokens)) = state.old.tokens.remove_entry(chunk) else {
            state.misses += 1;
            return None;
        };
        state.hits += 1;
        state.old.bytes -= entry_bytes(&text, &tokens);
        let dropped = state.insert(text, tokens.clone());
        drop(state);
        drop(dropped);
        Some(tokens)
    }

    pub fn insert(&self, chunk: &str, tokens: &[u32]) {
        let (text, tokens) = (Box::from(chunk), Arc::from(tokens));
        let dropped = self.lock().insert(text, tokens);
        drop(dropped); // Without the lock: it is thousands of chunks.
    }

    pub fn counts(&self) -> CacheCounts {
        let state = self.lock();
        let bytes = state.young.bytes + state.old.bytes;
        CacheCounts { hits: state.hits, misses: state.misses, bytes }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns what has to go for it.
    fn insert(&mut self, text: Box<str>, tokens: Arc<[u32]>) -> Option<Generation> {
        let bytes = entry_bytes(&text, &tokens);
        if bytes > MAX_GENERATION_BYTES {
            return None;
        }
        let mut dropped = None;
        if self.young.bytes + bytes > MAX_GENERATION_BYTES {
            dropped = Some(mem::replace(&mut self.old, mem::take(&mut self.young)));
        }
        // Two threads may have tokenized the same chunk.
        if self.young.tokens.insert(text, tokens).is_none() {
            self.young.bytes += bytes;
        }
        dropped
    }
}

fn entry_bytes(text: &str, tokens: &[u32]) -> usize {
    text.len() + mem::size_of_val(tokens) + ENTRY_BYTES
}
