#pragma once

#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "common/http/http_server.h"

namespace baton {

// A client that takes what was written for it only when the test says so.
class BoundedWriter : public http::ResponseWriter {
 public:
  static constexpr size_t kRoom = 256 << 10;

  void Respond(http::Response response) override {
    ++sent;
    body += response.body;
    head = std::move(response);
  }
  void StartStream(http::Response response) override {
    ++streams;
    Write(std::exchange(response.body, {}));
    head = std::move(response);
  }
  bool Write(std::string piece) override {
    queued += piece.size();
    body += piece;
    writes += piece.empty() ? 0 : 1;
    return true;
  }
  bool HasRoom() const override { return queued < kRoom; }
  void OnRoom(std::function<void()> callback) override { on_room = std::move(callback); }
  void Finish(bool close) override {
    ++finished;
    closed = close;
  }
  void Abort() override { ++aborted; }
  void OnDisconnect(std::function<void()>) override {}
  void Post(std::function<void()> task) override { task(); }
  void MakeQuick() override {}

  // The client takes all that waits for it; false if nobody has more.
  bool Drain() {
    queued = 0;
    const auto callback = std::exchange(on_room, nullptr);
    if (callback) callback();
    return callback != nullptr;
  }

  http::Response head;
  std::string body;
  size_t queued = 0;
  int writes = 0, sent = 0, streams = 0, finished = 0, aborted = 0;
  bool closed = false;
  std::function<void()> on_room;
};

}  // namespace baton
