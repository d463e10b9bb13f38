#pragma once

#include <atomic>
#include <boost/asio/strand.hpp>
#include <memory>

#include "common/http/http_connection.h"
#include "common/http/http_server.h"

namespace baton::http {

// One request's answer on its connection: hands each call to the server's I/O thread.
class Exchange : public ResponseWriter, public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(std::shared_ptr<Connection> connection, ServerCore* core, uint64_t id, bool chunked);
  ~Exchange() override;

  void Respond(Response response) override;
  void StartStream(Response response) override;
  bool Write(std::string piece) override;
  bool HasRoom() const override { return !ended_ && connection_->HasRoom(); }
  void OnRoom(std::function<void()> callback) override;
  void Finish(bool close) override;
  void Abort() override;
  void OnDisconnect(std::function<void()> callback) override;
  void Post(std::function<void()> task) override;
  void MakeQuick() override { is_quick_ = true; }

  bool gone() const { return connection_->gone(); }
  // The handler has returned, and the request's body with it.
  void EndBody();

 private:
  std::function<void()> InOrder(std::function<void()> callback) const;

  const std::shared_ptr<Connection> connection_;
  ServerCore* const core_;  // Lives as long as the connection.
  const boost::asio::strand<boost::asio::io_context::executor_type> strand_;
  const uint64_t id_;
  const bool chunked_;
  std::atomic<bool> is_quick_{false};
  std::atomic<bool> ended_{false};
};

}  // namespace baton::http
