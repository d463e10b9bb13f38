#pragma once

#include <utility>

#include "common/rpc/worker_server.h"

namespace baton {

// For tests without a node: each event is a turn of its own.
class EagerServer : public WorkerServer {
 public:
  using WorkerServer::WorkerServer;

  void Emit(CallId call, WorkerEvent event) override {
    WorkerServer::Emit(call, std::move(event));
    Flush();
  }
  void Close(CallId call, absl::Status status) override {
    WorkerServer::Close(call, std::move(status));
    Flush();
  }
};

}  // namespace baton
