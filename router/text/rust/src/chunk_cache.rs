//! Tokens of chunks of text that came lately: prompts that begin alike are tokenized once.

use std::collections::hash_map::RandomState;
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::token_texts::TokenTexts;

/// Of one generation; there are two. What a chunk needs besides its tokens is counted too.
const MAX_GENERATION_BYTES: usize = 6 << 20;
const ENTRY_BYTES: usize = 128;

/// Any thread. A chunk is found by a hash of its text, and its tokens are taken if that is what they
/// spell: the text itself, most of what a chunk would take, is not kept.
pub struct ChunkCache {
    texts: TokenTexts,
    keys: RandomState,
    state: Mutex<State>,
    hits: AtomicU64,
    misses: AtomicU64,
}

#[derive(Clone, Copy, Default)]
pub struct CacheCounts {
    pub hits: u64,
    pub misses: u64,
    pub bytes: usize,
}

/// Three bytes each: there are texts of no larger ids.
type Tokens = Arc<[[u8; 3]]>;

/// What was not asked for while the young generation filled up goes with the old one.
#[derive(Default)]
struct State {
    young: Generation,
    old: Generation,
}

#[derive(Default)]
struct Generation {
    tokens: HashMap<u64, Tokens>,
    bytes: usize,
}

impl ChunkCache {
    pub fn new(texts: TokenTexts) -> ChunkCache {
        ChunkCache {
            texts,
            keys: RandomState::new(),
            state: Mutex::default(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// Appends the chunk's tokens; false if they are not here.
    pub fn find(&self, chunk: &str, ids: &mut Vec<u32>) -> bool {
        let tokens = self.lookup(self.keys.hash_one(chunk));
        let found = tokens.filter(|tokens| self.texts.spell(unpacked(tokens), chunk.as_bytes()));
        let Some(tokens) = found else {
            self.misses.fetch_add(1, Relaxed);
            return false;
        };
        self.hits.fetch_add(1, Relaxed);
        ids.extend(unpacked(&tokens));
        true
    }

    /// Unless they do not spell it, as those of a text that is normalized before.
    pub fn insert(&self, chunk: &str, ids: &[u32]) {
        if !self.texts.spell(ids.iter().copied(), chunk.as_bytes()) {
            return;
        }
        let key = self.keys.hash_one(chunk);
        let dropped = self.lock().insert(key, packed(ids));
        drop(dropped); // Without the lock: it is thousands of chunks.
    }

    pub fn counts(&self) -> CacheCounts {
        let state = self.lock();
        let bytes = state.young.bytes + state.old.bytes;
        CacheCounts { hits: self.hits.load(Relaxed), misses: self.misses.load(Relaxed), bytes }
    }

    fn lookup(&self, key: u64) -> Option<Tokens> {
        let mut state = self.lock();
        if let Some(tokens) = state.young.tokens.get(&key) {
            return Some(tokens.clone());
        }
        let tokens = state.old.tokens.remove(&key)?;
        state.old.bytes -= entry_bytes(&tokens);
        let dropped = state.insert(key, tokens.clone());
        drop(state);
        drop(dropped);
        Some(tokens)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns what has to go for it.
    fn insert(&mut self, key: u64, tokens: Tokens) -> Option<Generation> {
        let bytes = entry_bytes(&tokens);
        if bytes > MAX_GENERATION_BYTES {
            return None;
        }
        let mut dropped = None;
        if self.young.bytes + bytes > MAX_GENERATION_BYTES {
            dropped = Some(mem::replace(&mut self.old, mem::take(&mut self.young)));
        }
        self.young.bytes += bytes;
        // Two threads may have tokenized the same chunk.
        if let Some(before) = self.young.tokens.insert(key, tokens) {
            self.young.bytes -= entry_bytes(&before);
        }
        dropped
    }
}

fn entry_bytes(tokens: &Tokens) -> usize {
    mem::size_of_val::<[[u8; 3]]>(tokens) + ENTRY_BYTES
}

fn packed(ids: &[u32]) -> Tokens {
    let pack = |id: &u32| {
        let [a, b, c, _] = id.to_le_bytes();
        [a, b, c]
    };
    ids.iter().map(pack).collect()
}

fn unpacked(tokens: &Tokens) -> impl Iterator<Item = u32> + '_ {
    tokens.iter().map(|[a, b, c]| u32::from_le_bytes([*a, *b, *c, 0]))
}
