#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace baton {

// What a client sends first (RFC 9113, 3.4).
inline constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// One direction of an HTTP/2 connection, by the heads of its frames alone (RFC 9113, 4.1): what is
// in them is passed over, apart from why a server resets a stream. Nothing else decides where a
// frame ends, so whoever reads them behind this one sees the same frames. Holds a head, whatever
// comes.
class Http2Frames {
 public:
  enum class From { kClient, kServer };
  enum class Event {
    kNone,
    kOpened,    // By a client: a stream that is new.
    kReset,     // By a client, whatever the stream; by a server with an error, which a client can
                // make it send by frames that are not allowed.
    kAnswered,  // By a server, to the end; or reset without an error.
    kInvalid,   // Now and from then on: a client's first bytes are not HTTP/2's, or its first
                // frame is not SETTINGS.
  };
  explicit Http2Frames(From from);

  // Takes bytes off the front: up to the last byte that tells of the next event, or all. Of
  // kOpened that is the last of the frame's head.
  Event Read(std::string_view& bytes);
  // Of the last event.
  uint32_t stream() const { return stream_; }

  // The head of the first frame is here.
  bool has_begun() const { return has_begun_; }
  // So many bytes at least belong to the frame that has begun; 0 between two frames.
  size_t bytes_to_border() const;

 private:
  static constexpr size_t kHeadBytes = 9;

  bool ReadPreface(std::string_view& bytes);
  Event ReadHead(std::string_view& bytes);
  Event ReadPayload(std::string_view& bytes);
  Event OnHeadOfClient(unsigned char type);
  Event OnHeadOfServer(unsigned char type);

  const From from_;
  size_t preface_bytes_ = 0;  // That have come.
  bool is_valid_ = true;
  bool has_begun_ = false;
  std::array<unsigned char, kHeadBytes> head_{};
  size_t head_bytes_ = 0;    // That have come of the next frame's.
  size_t payload_left_ = 0;  // Of the frame before.
  bool is_reset_of_server_ = false;
  bool is_error_ = false;  // Its reason, as far as it has come, is not 0.
  uint32_t stream_ = 0;
  uint32_t last_opened_ = 0;
};

// A server's last word: GOAWAY of ENHANCE_YOUR_CALM with text for whoever looks for the cause. It
// does not say that any stream was left alone, so none is repeated unasked.
std::string Http2Goaway(std::string_view text);

}  // namespace baton
