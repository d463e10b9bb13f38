#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/transport/tcp/socket.h"

namespace baton {

// What the proxy does to the bytes from the connecting (sending) side; offsets count from the start
// of each connection, -1 = never.
struct ProxyFaults {
  int64_t flip_bit = -1;         // Bit flip_bit % 8 of byte flip_bit / 8.
  int64_t flip_answer_bit = -1;  // The same of the bytes from the receiving side.
  int64_t cut_at_byte = -1;      // Both sockets are closed before this byte.
  int64_t stall_at_byte = -1;    // Nothing from this byte on; the sockets stay open. What came is
                                 // held, and passed on by the Set that lifts the stall.
  int64_t duplicate_frame = -1;  // This frame is sent twice.
  int64_t drop_frame = -1;       // This frame is left out.
};

// A TCP proxy in front of one receiver, with one thread. The test's own, not for production.
class FaultProxy {
 public:
  explicit FaultProxy(std::string target);
  ~FaultProxy();

  void Set(const ProxyFaults& faults);
  const std::string& endpoint() const { return endpoint_; }

 private:
  struct Pair {
    FileDescriptor from;        // The sender's connection to us.
    FileDescriptor to;          // Ours to the receiver.
    std::vector<char> held;     // Bytes of a frame that is not complete.
    std::vector<char> stalled;  // Bytes from a stall on.
    int64_t offset = 0;         // Bytes from the sender that were let through.
    int64_t answer_offset = 0;  // Bytes from the receiver.
    int64_t frame = 0;
    bool open = true;
  };

  ProxyFaults faults() const;
  void Wake();
  void Run();
  void Accept();
  void Forward(Pair* pair);
  void ForwardAnswer(Pair* pair);
  void PassOn(Pair* pair, std::vector<char> bytes);
  void SendFrames(Pair* pair, const ProxyFaults& faults);
  void SendAll(Pair* pair, int fd, const char* data, size_t size);

  const std::string target_;
  FileDescriptor listener_;
  FileDescriptor wake_;  // eventfd
  std::string endpoint_;
  mutable std::mutex mutex_;
  ProxyFaults faults_;
  bool stopping_ = false;
  std::vector<std::unique_ptr<Pair>> pairs_;  // The thread's.
  std::thread thread_;
};

}  // namespace baton
