#include "router/front/http2_frames.h"

#include <algorithm>

namespace baton {
namespace {

enum Type : unsigned char { kData = 0, kHeaders = 1, kRstStream = 3, kSettings = 4, kGoaway = 7 };
constexpr unsigned char kEndStream = 0x1;
constexpr unsigned char kEnhanceYourCalm = 0xb;
constexpr uint32_t kStreamBits = 0x7fffffff;

uint32_t BigEndian(const unsigned char* bytes, int count) {
  uint32_t value = 0;
  for (int i = 0; i < count; ++i) value = value << 8 | bytes[i];
  return value;
}

}  // namespace

Http2Frames::Http2Frames(From from) : from_(from) {}

size_t Http2Frames::bytes_to_border() const {
  if (payload_left_ > 0) return payload_left_;
  return head_bytes_ > 0 ? kHeadBytes - head_bytes_ : 0;
}

Http2Frames::Event Http2Frames::Read(std::string_view& bytes) {
  if (from_ == From::kClient && !ReadPreface(bytes)) is_valid_ = false;
  while (is_valid_ && !bytes.empty()) {
    const Event event = payload_left_ > 0 ? ReadPayload(bytes) : ReadHead(bytes);
    if (event != Event::kNone) return event;
  }
  return is_valid_ ? Event::kNone : Event::kInvalid;
}

bool Http2Frames::ReadPreface(std::string_view& bytes) {
  const std::string_view left = kHttp2Preface.substr(preface_bytes_);
  const size_t size = std::min(left.size(), bytes.size());
  if (left.substr(0, size) != bytes.substr(0, size)) return false;
  preface_bytes_ += size;
  bytes.remove_prefix(size);
  return true;
}

Http2Frames::Event Http2Frames::ReadHead(std::string_view& bytes) {
  const size_t size = std::min(kHeadBytes - head_bytes_, bytes.size());
  std::copy_n(bytes.begin(), size, head_.begin() + static_cast<std::ptrdiff_t>(head_bytes_));
  head_bytes_ += size;
  bytes.remove_prefix(size);
  if (head_bytes_ < kHeadBytes) return Event::kNone;
  head_bytes_ = 0;
  payload_left_ = BigEndian(&head_[0], 3);
  stream_ = BigEndian(&head_[5], 4) & kStreamBits;
  const unsigned char type = head_[3];
  const Event event = from_ == From::kClient ? OnHeadOfClient(type) : OnHeadOfServer(type);
  has_begun_ = is_valid_;
  return event;
}

Http2Frames::Event Http2Frames::OnHeadOfClient(unsigned char type) {
  if (!has_begun_ && type != kSettings) is_valid_ = false;
  if (!is_valid_) return Event::kInvalid;
  if (type == kRstStream) return Event::kReset;
  if (type != kHeaders || stream_ % 2 == 0 || stream_ <= last_opened_) return Event::kNone;
  last_opened_ = stream_;
  return Event::kOpened;
}

Http2Frames::Event Http2Frames::OnHeadOfServer(unsigned char type) {
  is_reset_of_server_ = type == kRstStream;
  is_error_ = false;
  const bool is_last = (head_[4] & kEndStream) != 0;
  return (type == kData || type == kHeaders) && is_last ? Event::kAnswered : Event::kNone;
}

Http2Frames::Event Http2Frames::ReadPayload(std::string_view& bytes) {
  const std::string_view part = bytes.substr(0, payload_left_);
  payload_left_ -= part.size();
  bytes.remove_prefix(part.size());
  if (!is_reset_of_server_) return Event::kNone;
  is_error_ = is_error_ || part.find_first_not_of('\0') != part.npos;
  if (payload_left_ > 0) return Event::kNone;
  return is_error_ ? Event::kReset : Event::kAnswered;
}

std::string Http2Goaway(std::string_view text) {
  const size_t size = 8 + text.size();
  std::string frame;
  for (const int shift : {16, 8, 0}) frame.push_back(static_cast<char>(size >> shift & 0xff));
  frame.push_back(kGoaway);
  frame.append(5, '\0');  // No flags; the connection as a whole.
  frame.append("\x7f\xff\xff\xff", 4);
  frame.append(3, '\0');
  frame.push_back(kEnhanceYourCalm);
  frame.append(text);
  return frame;
}

}  // namespace baton
