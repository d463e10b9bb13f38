#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cstddef>
#include <deque>
#include <functional>
#include <utility>

namespace baton::http {

// Tasks of the I/O thread that take long for it: between two of them all else that is ready has its
// turn. To be called on that thread.
class PacedTasks {
 public:
  explicit PacedTasks(boost::asio::io_context& io) : io_(io) {}

  void Add(std::function<void()> task) {
    tasks_.push_back(std::move(task));
    if (!is_awaited_) Await();
  }
  size_t num_waiting() const { return tasks_.size(); }

 private:
  void Await() {
    boost::asio::post(io_, [this] { RunNext(); });
    is_awaited_ = true;
  }

  // The next one is awaited even if this one throws.
  void RunNext() {
    is_awaited_ = false;
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    if (!tasks_.empty()) Await();
    task();
  }

  boost::asio::io_context& io_;
  std::deque<std::function<void()>> tasks_;
  bool is_awaited_ = false;  // RunNext will run.
};

}  // namespace baton::http
