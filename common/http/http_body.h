#pragma once

#include <boost/beast/http/error.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/optional.hpp>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace baton::http {

// A body in a string that grows as bytes come: a length that is announced costs nothing.
struct GrowingBody {
  using value_type = std::string;

  class reader {
   public:
    template <bool kIsRequest, typename Fields>
    reader(boost::beast::http::header<kIsRequest, Fields>&, value_type& body) : body_(body) {}

    void init(const boost::optional<uint64_t>&, boost::system::error_code& error) { error = {}; }

    template <typename Buffers>
    size_t put(const Buffers& buffers, boost::system::error_code& error) {
      error = {};
      const size_t before = body_.size();
      for (auto it = boost::asio::buffer_sequence_begin(buffers);
           it != boost::asio::buffer_sequence_end(buffers); ++it) {
        const boost::asio::const_buffer piece(*it);
        body_.append(static_cast<const char*>(piece.data()), piece.size());
      }
      return body_.size() - before;
    }

    void finish(boost::system::error_code& error) { error = {}; }

   private:
    value_type& body_;
  };
};

// Counts the bytes of bodies that have come and are not handled yet: of each client, and of all.
// Thread-safe.
class BodyMeter {
 public:
  enum class Room { kEnough, kClientIsFull, kServerIsFull };

  BodyMeter(int64_t max_bytes, int64_t max_client_bytes)
      : max_bytes_(max_bytes), max_client_bytes_(max_client_bytes) {}

  // Counts them if there is room.
  Room Add(const std::string& client, int64_t bytes);
  void Release(const std::string& client, int64_t bytes);

  int64_t max_client_bytes() const { return max_client_bytes_; }
  int64_t total() const;
  size_t num_clients() const;  // That have some.

 private:
  const int64_t max_bytes_;
  const int64_t max_client_bytes_;
  mutable absl::Mutex mutex_;
  int64_t total_ ABSL_GUARDED_BY(mutex_) = 0;
  // Only clients that have some.
  absl::flat_hash_map<std::string, int64_t> by_client_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::http
