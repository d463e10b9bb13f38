//! The C ABI, declared for C++ in text_abi.h. Every function that can fail returns an
//! absl::StatusCode and fills `out`: with its result, or with the error message.

use std::os::raw::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::slice;
use std::sync::{Arc, Once};

use crate::codec::Codec;
use crate::failure::{Failure, Outcome, INTERNAL};
use crate::stream::Decoder;
use crate::template::Request;

const MAX_MESSAGE_BYTES: usize = 2048;

/// Bytes that this library owns; given back by `baton_text_free_buffer`.
#[repr(C)]
pub struct Buffer {
    data: *mut u8,
    size: usize,
    capacity: usize,
}

#[repr(C)]
pub struct Text {
    data: *const u8,
    size: usize,
}

#[repr(C)]
pub struct Info {
    vocab_size: i32,
    bos_id: i32,
    eos_id: i32,
    max_token_bytes: i32,
    has_chat_template: bool,
    has_parts: bool,
}

#[repr(C)]
pub struct CacheInfo {
    hits: u64,
    misses: u64,
    bytes: u64,
}

#[repr(C)]
pub struct RenderRequest {
    messages_json: Text,
    kwargs_json: Text,
    chat_template: Text,
    add_generation_prompt: bool,
    /// Seconds since 1970 for strftime_now; negative = now.
    now_s: i64,
}

impl Text {
    /// The caller keeps the bytes alive during the call.
    unsafe fn bytes(&self) -> &[u8] {
        bytes(self.data, self.size)
    }

    unsafe fn utf8(&self, name: &str) -> Outcome<&str> {
        std::str::from_utf8(self.bytes()).map_err(|error| {
            Failure::invalid(format!("{name} is not UTF-8 (byte {})", error.valid_up_to()))
        })
    }
}

unsafe fn bytes<'a>(data: *const u8, size: usize) -> &'a [u8] {
    if size == 0 {
        &[]
    } else {
        slice::from_raw_parts(data, size)
    }
}

fn fill(out: *mut Buffer, bytes: Vec<u8>) {
    let mut bytes = std::mem::ManuallyDrop::new(bytes);
    let buffer = Buffer { data: bytes.as_mut_ptr(), size: bytes.len(), capacity: bytes.capacity() };
    // SAFETY: `out` is a valid buffer of the caller, and it holds nothing.
    unsafe { out.write(buffer) };
}

/// Runs a call; a panic below becomes INTERNAL and stays quiet.
fn guard(out: *mut Buffer, call: impl FnOnce() -> Outcome<Vec<u8>>) -> i32 {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    let failure = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(bytes)) => {
            fill(out, bytes);
            return 0;
        }
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(INTERNAL, "the text library met a case that it does not handle"),
    };
    fill(out, readable(failure.message));
    failure.code
}

/// A message of bounded length. The libraries below may quote bytes that are no text.
fn readable(message: String) -> Vec<u8> {
    let bytes = message.into_bytes();
    let kept = &bytes[..bytes.len().min(MAX_MESSAGE_BYTES)];
    let mut text = String::from_utf8_lossy(kept).into_owned();
    if kept.len() < bytes.len() {
        text += "...";
    }
    text.into_bytes()
}

unsafe fn codec<'a>(codec: *const c_void) -> &'a Codec {
    &*(codec as *const Codec)
}

fn id_bytes(ids: impl Iterator<Item = u32>) -> Vec<u8> {
    ids.flat_map(u32::to_ne_bytes).collect()
}

/// # Safety
/// `folder` names valid bytes; `codec` and `out` are writable.
#[no_mangle]
pub unsafe extern "C" fn baton_text_load(
    folder: Text,
    codec: *mut *const c_void,
    out: *mut Buffer,
) -> i32 {
    guard(out, || {
        tokenizers::utils::parallelism::set_parallelism(false);
        let loaded = Codec::load(Path::new(folder.utf8("the model folder's name")?))?;
        codec.write(Arc::into_raw(Arc::new(loaded)) as *const c_void);
        Ok(Vec::new())
    })
}

/// # Safety
/// `handle` comes from `baton_text_load` and is not used again.
#[no_mangle]
pub unsafe extern "C" fn baton_text_free(handle: *const c_void) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(Arc::from_raw(handle as *const Codec))));
}

/// # Safety
/// `handle` comes from `baton_text_load`; `info` is writable.
#[no_mangle]
pub unsafe extern "C" fn baton_text_info(handle: *const c_void, info: *mut Info) {
    let codec = codec(handle);
    info.write(Info {
        vocab_size: codec.vocab_size() as i32,
        bos_id: codec.named_id("bos_token"),
        eos_id: codec.named_id("eos_token"),
        max_token_bytes: i32::try_from(codec.max_token_bytes()).unwrap_or(0),
        has_chat_template: codec.templates.has_default(),
        has_parts: codec.has_parts(),
    });
}

/// # Safety
/// `handle` comes from `baton_text_load`; `info` is writable.
#[no_mangle]
pub unsafe extern "C" fn baton_text_cache_info(handle: *const c_void, info: *mut CacheInfo) {
    let counts = codec(handle).cache_counts();
    let (hits, misses) = (counts.hits, counts.misses);
    info.write(CacheInfo { hits, misses, bytes: counts.bytes as u64 });
}

/// The ids as 32-bit integers.
/// # Safety
/// `handle` comes from `baton_text_load`; `text` names valid bytes; `out` is writable.
#[no_mangle]
pub unsafe extern "C" fn baton_text_encode(
    handle: *const c_void,
    text: Text,
    add_special_tokens: bool,
    out: *mut Buffer,
) -> i32 {
    guard(out, || {
        let ids = codec(handle).encode(text.bytes(), add_special_tokens)?;
        Ok(id_bytes(ids.into_iter()))
    })
}

/// # Safety
/// `handle` comes from `baton_text_load`; `ids` has `num_ids` elements; `out` is writable.
#[no_mangle]
pub unsafe extern "C" fn baton_text_decode(
    handle: *const c_void,
    ids: *const i32,
    num_ids: usize,
    skip_special_tokens: bool,
    out: *mut Buffer,
) -> i32 {
    guard(out, || {
        let ids = if num_ids == 0 { &[] } else { slice::from_raw_parts(ids, num_ids) };
        Ok(codec(handle).decode(ids, skip_special_tokens)?.into_bytes())
    })
}

/// One token's text; `bytes` is filled with its bytes, unless there is an error.
/// # Safety
/// `handle` comes from `baton_text_load`; `special`, `bytes` and `out` are writable.
#[no_mangle]
pub unsafe extern "C" fn baton_text_token(
    handle: *const c_void,
    id: i32,
    special: *mut bool,
    bytes: *mut Buffer,
    out: *mut Buffer,
) -> i32 {
    guard(out, || {
        let piece = codec(handle).piece(id)?;
        let text = String::from_utf8_lossy(&piece.bytes).into_owned();
        special.write(piece.special);
        fill(bytes, piece.bytes);
        Ok(text.into_bytes())
    })
}

/// # Safety
/// `handle` comes from `baton_text_load`; `request` and its texts are valid; `out` is writable.
#[no_mangle]
pub unsafe extern "C" fn baton_text_render(
    handle: *const c_void,
    request: *const RenderRequest,
    out: *mut Buffer,
) -> i32 {
    guard(out, || {
        let request = &*request;
        let request = Request {
            messages_json: request.messages_json.utf8("messages")?,
            kwargs_json: request.kwargs_json.utf8("chat_template_kwargs")?,
            chat_template: request.chat_template.utf8("chat_template")?,
            add_generation_prompt: request.add_generation_prompt,
            now_s: (request.now_s >= 0).then_some(request.now_s),
        };
        Ok(codec(handle).templates.render(&request)?.into_bytes())
    })
}

/// # Safety
/// `handle` comes from `baton_text_load`; it may be freed before the decoder.
#[no_mangle]
pub unsafe extern "C" fn baton_text_decoder_new(
    handle: *const c_void,
    skip_special_tokens: bool,
) -> *mut c_void {
    let codec = handle as *const Codec;
    Arc::increment_strong_count(codec);
    let decoder = Decoder::new(Arc::from_raw(codec), skip_special_tokens);
    Box::into_raw(Box::new(decoder)) as *mut c_void
}

/// # Safety
/// `decoder` comes from `baton_text_decoder_new`; one thread at a time; `out` is writable.
#[no_mangle]
pub unsafe extern "C" fn baton_text_decoder_push(
    decoder: *mut c_void,
    id: i32,
    out: *mut Buffer,
) -> i32 {
    guard(out, || Ok((*(decoder as *mut Decoder)).push(id)?.into_bytes()))
}

/// # Safety
/// `decoder` comes from `baton_text_decoder_new`; one thread at a time; `out` is writable.
#[no_mangle]
pub unsafe extern "C" fn baton_text_decoder_flush(decoder: *mut c_void, out: *mut Buffer) -> i32 {
    guard(out, || Ok((*(decoder as *mut Decoder)).flush()?.into_bytes()))
}

/// # Safety
/// `decoder` comes from `baton_text_decoder_new` and is not used again.
#[no_mangle]
pub unsafe extern "C" fn baton_text_decoder_free(decoder: *mut c_void) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(decoder as *mut Decoder))));
}

/// # Safety
/// `buffer` was filled by a call of this library; it is empty afterwards.
#[no_mangle]
pub unsafe extern "C" fn baton_text_free_buffer(buffer: *mut Buffer) {
    let buffer = &mut *buffer;
    drop(Vec::from_raw_parts(buffer.data, buffer.size, buffer.capacity));
    buffer.data = std::ptr::null_mut();
    buffer.size = 0;
    buffer.capacity = 0;
}
