#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <string>

#include "common/transport/tcp/byte_stream.h"

namespace baton {

// What lies between the two ends of a connection: a socket without a kernel, whose calls took most
// of the time of an input.
struct Wire {
  std::string to_reader;
  std::string from_writer;
  size_t taken = 0;  // Of to_reader.

  void Send(std::string_view bytes) {
    if (taken == to_reader.size()) to_reader.clear(), taken = 0;
    to_reader.append(bytes);
  }
};

// One end of it. Takes whatever is written at once. The wire outlives it.
class MemoryStream : public ByteStream {
 public:
  explicit MemoryStream(Wire* wire) : wire_(*wire) {}

  ssize_t Read(const iovec* parts, int num_parts) override {
    size_t moved = 0;
    for (const iovec& part : std::span(parts, static_cast<size_t>(num_parts))) {
      const size_t size = std::min(part.iov_len, wire_.to_reader.size() - wire_.taken);
      std::memcpy(part.iov_base, wire_.to_reader.data() + wire_.taken, size);
      wire_.taken += size;
      moved += size;
    }
    if (moved > 0) return static_cast<ssize_t>(moved);
    errno = EAGAIN;
    return -1;
  }

  ssize_t Write(const iovec* parts, int num_parts) override {
    size_t moved = 0;
    for (const iovec& part : std::span(parts, static_cast<size_t>(num_parts))) {
      wire_.from_writer.append(static_cast<const char*>(part.iov_base), part.iov_len);
      moved += part.iov_len;
    }
    return static_cast<ssize_t>(moved);
  }

  absl::Status ConnectResult() override { return absl::OkStatus(); }
  int fd() const override { return -1; }

 private:
  Wire& wire_;
};

}  // namespace baton
