#include "common/transport/tcp/frame_stream.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/base/crc32c.h"

namespace baton {
namespace {

constexpr int kMaxIovecs = 1024;           // IOV_MAX of Linux.
constexpr size_t kBytesPerTurn = 1 << 20;  // Then other connections get their turn.
constexpr size_t kMaxQueuedFrames = 4096;

std::span<const std::byte> Span(const iovec& part) {
  return {static_cast<const std::byte*>(part.iov_base), part.iov_len};
}

absl::Status SocketError(const char* what) {
  if (errno == EKEYREJECTED) {
    return absl::UnauthenticatedError("KV connection: the handshake of TLS came to nothing");
  }
  if (errno == EBADMSG) return absl::DataLossError("KV connection: damaged under TLS");
  return absl::UnavailableError(absl::StrCat("KV connection: ", what, ": ", std::strerror(errno)));
}

}  // namespace

FrameStream::FrameStream(std::unique_ptr<ByteStream> bytes, Link* link, const Options& options)
    : bytes_(std::move(bytes)), link_(link), options_(options) {}

// The list never reaches beyond the next header, so nothing has to be decided in its middle.
int FrameStream::BuildReadList(iovec* list) const {
  int n = 0;
  auto add = [&](const void* base, size_t size) {
    if (size > 0) list[n++] = {const_cast<void*>(base), size};
  };
  size_t listed = 0;
  if (rx_state_ == RxState::kPayload) {
    if (rx_discard_) {
      listed = std::min(rx_left_, options_.scratch.size());
      add(options_.scratch.data(), listed);
    } else {
      size_t offset = rx_offset_;
      for (size_t i = rx_index_; i < rx_memory_.size() && n < kMaxIovecs - 2; ++i, offset = 0) {
        add(static_cast<std::byte*>(rx_memory_[i].iov_base) + offset,
            rx_memory_[i].iov_len - offset);
        listed += rx_memory_[i].iov_len - offset;
      }
    }
    if (listed < rx_left_) return n;
    add(rx_trailer_bytes_.data(), kTrailerBytes);
    add(rx_header_bytes_.data(), kHeaderBytes);
  } else if (rx_state_ == RxState::kTrailer) {
    add(rx_trailer_bytes_.data() + rx_have_, kTrailerBytes - rx_have_);
    add(rx_header_bytes_.data(), kHeaderBytes);
  } else {
    add(rx_header_bytes_.data() + rx_have_, kHeaderBytes - rx_have_);
  }
  return n;
}

absl::Status FrameStream::Failed(const char* what) {
  const absl::Status status = SocketError(what);
  if (absl::IsUnauthenticated(status)) {
    options_.counters->Add(&TransportCounters::failed_handshakes);
  } else if (absl::IsDataLoss(status)) {
    options_.counters->Add(&TransportCounters::malformed);
  }
  return status;
}

absl::Status FrameStream::Read() {
  iovec list[kMaxIovecs];
  for (size_t total = 0; !paused_ && total < kBytesPerTurn;) {
    const int parts = BuildReadList(list);
    const ssize_t n = bytes_->Read(list, parts);
    if (n == 0) return absl::UnavailableError("KV connection: closed by the peer");
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return absl::OkStatus();
      return Failed("read");
    }
    total += n;
    RETURN_IF_ERROR(Consume(n));
  }
  return absl::OkStatus();
}

absl::Status FrameStream::Consume(size_t bytes) {
  while (bytes > 0) {
    if (rx_state_ == RxState::kPayload) {
      const size_t n = std::min(bytes, rx_left_);
      ConsumePayload(n);
      bytes -= n;
      continue;
    }
    const bool header = rx_state_ == RxState::kHeader;
    const size_t whole = header ? kHeaderBytes : kTrailerBytes;
    const size_t n = std::min(bytes, whole - rx_have_);
    rx_have_ += n;
    bytes -= n;
    if (rx_have_ < whole || paused_) continue;  // What is read ends with a header.
    rx_have_ = 0;
    RETURN_IF_ERROR(header ? OnWholeHeader() : OnWholeFrame());
  }
  return absl::OkStatus();
}

absl::Status FrameStream::Resume() {
  paused_ = false;
  if (rx_state_ != RxState::kHeader || rx_have_ < kHeaderBytes) return absl::OkStatus();
  rx_have_ = 0;
  return OnWholeHeader();
}

void FrameStream::ConsumePayload(size_t bytes) {
  rx_left_ -= bytes;
  while (!rx_discard_ && bytes > 0) {
    const iovec& part = rx_memory_[rx_index_];
    const size_t n = std::min(bytes, part.iov_len - rx_offset_);
    rx_crc_ = ExtendCrc32c(rx_crc_, Span(part).subspan(rx_offset_, n));
    bytes -= n;
    rx_offset_ += n;
    if (rx_offset_ == part.iov_len) {
      ++rx_index_;
      rx_offset_ = 0;
    }
  }
  if (rx_left_ == 0) {
    rx_state_ = RxState::kTrailer;
    rx_have_ = 0;
  }
}

absl::Status FrameStream::OnWholeHeader() {
  auto header = DecodeHeader(rx_header_bytes_);
  if (header.ok() && header->sequence > rx_sequence_ + 1) {
    header = absl::DataLossError(absl::StrCat("frame ", header->sequence, " after frame ",
                                              rx_sequence_, ": frames are missing"));
  }
  if (!header.ok()) {
    options_.counters->Add(&TransportCounters::malformed);
    return header.status();
  }
  rx_header_ = *header;
  rx_duplicate_ = header->sequence <= rx_sequence_;
  rx_discard_ = rx_duplicate_;
  rx_memory_.clear();
  rx_index_ = rx_offset_ = 0;
  rx_crc_ = 0;
  rx_left_ = header->payload_bytes;
  if (rx_duplicate_) {
    options_.counters->Add(&TransportCounters::duplicate_frames);
  } else {
    rx_sequence_ = header->sequence;
    ASSIGN_OR_RETURN(PayloadPlan plan, link_->OnHeader(rx_header_));
    rx_discard_ = plan.kind == PayloadPlan::Kind::kDiscard;
    if (plan.kind == PayloadPlan::Kind::kMemory) {
      rx_body_.clear();
      rx_memory_ = std::move(plan.memory);
    } else if (plan.kind == PayloadPlan::Kind::kBody) {
      rx_body_.resize(rx_left_);
      rx_memory_ = {{rx_body_.data(), rx_left_}};
    }
  }
  if (rx_left_ == 0) return OnWholeFrame();
  rx_state_ = RxState::kPayload;
  return absl::OkStatus();
}

absl::Status FrameStream::OnWholeFrame() {
  rx_state_ = RxState::kHeader;
  rx_have_ = 0;
  rx_memory_.clear();
  if (rx_duplicate_) return absl::OkStatus();
  ReceivedFrame frame{.header = rx_header_, .discarded = rx_discard_};
  if (rx_header_.payload_bytes > 0 && !rx_discard_) {
    const FrameTrailer trailer = DecodeTrailer(rx_trailer_bytes_);
    frame.abandoned = trailer.flags != 0;
    frame.checksum_ok = trailer.crc32c == rx_crc_;
    frame.body = rx_body_;
  }
  return link_->OnFrame(frame);
}

void FrameStream::DivertPayload(TicketId ticket) {
  if (rx_state_ == RxState::kHeader || rx_header_.type != FrameType::kData ||
      rx_header_.ticket != ticket) {
    return;
  }
  rx_discard_ = true;
  rx_memory_.clear();
}

absl::Status FrameStream::Queue(OutgoingFrame frame) {
  if (queue_.size() >= kMaxQueuedFrames) {
    return absl::ResourceExhaustedError("KV connection: the peer does not take its answers");
  }
  queue_.push_back(std::move(frame));
  return absl::OkStatus();
}

bool FrameStream::StartNextFrame() {
  if (!queue_.empty()) {
    StartFrame(std::move(queue_.front()));
    queue_.pop_front();
    return true;
  }
  std::optional<OutgoingFrame> next = link_->NextFrame();
  if (!next.has_value()) return false;
  StartFrame(*std::move(next));
  return true;
}

void FrameStream::StartFrame(OutgoingFrame frame) {
  tx_frame_ = std::move(frame);
  if (!tx_frame_.body.empty()) tx_frame_.memory = {{tx_frame_.body.data(), tx_frame_.body.size()}};
  size_t payload = 0;
  tx_trailer_ = {};
  for (const iovec& part : tx_frame_.memory) {
    payload += part.iov_len;
    tx_trailer_.crc32c = ExtendCrc32c(tx_trailer_.crc32c, Span(part));
  }
  BATON_CHECK(payload <= kMaxDataPayloadBytes);
  tx_frame_.header.sequence = tx_sequence_ + 1;
  tx_frame_.header.payload_bytes = static_cast<uint32_t>(payload);
  tx_header_bytes_ = EncodeHeader(tx_frame_.header);
  tx_trailer_bytes_ = EncodeTrailer(tx_trailer_);
  tx_list_.clear();
  tx_list_.push_back({tx_header_bytes_.data(), kHeaderBytes});
  if (payload > 0) {
    tx_list_.insert(tx_list_.end(), tx_frame_.memory.begin(), tx_frame_.memory.end());
    tx_list_.push_back({tx_trailer_bytes_.data(), kTrailerBytes});
  }
  tx_index_ = tx_offset_ = 0;
  sending_ = true;
  tx_started_ = false;
}

absl::Status FrameStream::Write() {
  wants_write_ = false;
  if (bytes_->HasUnsent() && bytes_->Write(nullptr, 0) < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return absl::OkStatus();
    return Failed("write");
  }
  iovec list[kMaxIovecs];
  for (size_t total = 0; sending_ || StartNextFrame();) {
    if (total >= kBytesPerTurn) {
      wants_write_ = true;
      return absl::OkStatus();
    }
    const size_t parts = std::min<size_t>(kMaxIovecs, tx_list_.size() - tx_index_);
    std::copy_n(tx_list_.begin() + static_cast<ptrdiff_t>(tx_index_), parts, list);
    list[0].iov_base = static_cast<std::byte*>(list[0].iov_base) + tx_offset_;
    list[0].iov_len -= tx_offset_;
    const ssize_t n = bytes_->Write(list, static_cast<int>(parts));
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        wants_write_ = true;
        return absl::OkStatus();
      }
      return Failed("write");
    }
    total += n;
    Advance(n);
  }
  return absl::OkStatus();
}

void FrameStream::Advance(size_t bytes) {
  if (bytes > 0 && !tx_started_) {
    tx_started_ = true;
    ++tx_sequence_;
  }
  while (bytes > 0) {
    const size_t n = std::min(bytes, tx_list_[tx_index_].iov_len - tx_offset_);
    bytes -= n;
    tx_offset_ += n;
    if (tx_offset_ == tx_list_[tx_index_].iov_len) {
      ++tx_index_;
      tx_offset_ = 0;
    }
  }
  if (tx_index_ < tx_list_.size()) return;
  sending_ = false;
  if (tx_frame_.header.type == FrameType::kData && tx_trailer_.flags == 0) {
    options_.counters->Add(&TransportCounters::frames_sent);
    options_.counters->Add(&TransportCounters::bytes_sent, tx_frame_.header.payload_bytes);
  }
}

void FrameStream::AbandonFrame(TicketId ticket) {
  if (!sending_ || tx_frame_.header.ticket != ticket || tx_frame_.header.type != FrameType::kData) {
    return;
  }
  if (!tx_started_) {
    sending_ = false;
    return;
  }
  const size_t last = tx_list_.size() - 1;  // The trailer.
  for (size_t i = std::max<size_t>(1, tx_index_); i < last; ++i) {
    zeros_.resize(std::max(zeros_.size(), tx_list_[i].iov_len));
  }
  for (size_t i = std::max<size_t>(1, tx_index_); i < last; ++i) {
    tx_list_[i].iov_base = zeros_.data();
  }
  if (tx_index_ < last || tx_offset_ == 0) {
    tx_trailer_.flags = kTrailerAbandoned;
    tx_trailer_bytes_ = EncodeTrailer(tx_trailer_);
  }
}

}  // namespace baton
