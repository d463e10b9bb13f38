#pragma once

#include <cstddef>
#include <cstdint>

// The C ABI of the Rust library in rust/ (rust/src/ffi.rs). Only text_codec.cc uses it. Functions
// that return int32_t return an absl::StatusCode and fill `out`, with the result or with an error
// message; `out` must hold nothing before. Handles may be used by any thread, decoders by one at a
// time.
extern "C" {

struct BatonTextBuffer {
  uint8_t* data;  // Owned by the library: see baton_text_free_buffer.
  size_t size;
  size_t capacity;
};

struct BatonText {
  const uint8_t* data;
  size_t size;
};

struct BatonTextInfo {
  int32_t vocab_size;
  int32_t bos_id;  // -1 = none.
  int32_t eos_id;
  int32_t max_token_bytes;  // 0 = no bound.
  bool has_chat_template;
  bool has_parts;
};

struct BatonTextCacheInfo {
  uint64_t hits;
  uint64_t misses;
  uint64_t bytes;
};

struct BatonTextRenderRequest {
  BatonText messages_json;
  BatonText kwargs_json;
  BatonText chat_template;
  bool add_generation_prompt;
  int64_t now_s;  // Negative = the system's clock.
};

int32_t baton_text_load(BatonText folder, const void** codec, BatonTextBuffer* out);
void baton_text_free(const void* codec);
void baton_text_info(const void* codec, BatonTextInfo* info);
void baton_text_cache_info(const void* codec, BatonTextCacheInfo* info);
// `out`: the ids as int32_t.
int32_t baton_text_encode(const void* codec, BatonText text, bool add_special_tokens,
                          BatonTextBuffer* out);
int32_t baton_text_decode(const void* codec, const int32_t* ids, size_t num_ids,
                          bool skip_special_tokens, BatonTextBuffer* out);
// `out`: the token's text; `bytes`: its bytes, untouched on an error.
int32_t baton_text_token(const void* codec, int32_t id, bool* special, BatonTextBuffer* bytes,
                         BatonTextBuffer* out);
int32_t baton_text_render(const void* codec, const BatonTextRenderRequest* request,
                          BatonTextBuffer* out);
// The decoder shares the codec, which may be freed first.
void* baton_text_decoder_new(const void* codec, bool skip_special_tokens);
int32_t baton_text_decoder_push(void* decoder, int32_t id, BatonTextBuffer* out);
int32_t baton_text_decoder_flush(void* decoder, BatonTextBuffer* out);
void baton_text_decoder_free(void* decoder);
void baton_text_free_buffer(BatonTextBuffer* buffer);

}  // extern "C"
