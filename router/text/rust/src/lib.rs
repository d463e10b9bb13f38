//! Tokenizer and chat templates of one model behind a C ABI (see `ffi`). No panic leaves this
//! library, no call of it writes to standard error, and all shared data is immutable after load,
//! but for a cache behind a lock (`chunk_cache`).

mod byte_level_bpe;
mod chunk_cache;
mod codec;
mod failure;
mod ffi;
mod model_files;
mod parts;
mod stream;
mod template;
mod token_texts;
