#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "baton/v1/session.grpc.pb.h"
#include "common/rpc/connection.h"
#include "common/rpc/message_wire.h"
#include "common/rpc/session.h"
#include "tests/unit/common/rpc/test_cluster.h"

// Both ends of a session without anything of Baton's server and client, so that a test can say what
// those never would.
namespace baton {

// One end: `Stream` reads and writes frames, `Out` and `In` are its messages.
template <typename Stream, typename Out, typename Item, typename In>
class HandmadeEnd {
 public:
  explicit HandmadeEnd(Stream* stream) : stream_(stream) {}

  // The peer's next message; nothing at the session's end, or where it is not as it should be.
  std::optional<In> Read() {
    v1::SessionFrame frame;
    In message;
    if (!stream_->Read(&frame) || !input_.Take(frame, &message).ok()) return std::nullopt;
    return message;
  }
  // The next that says something of a call.
  std::optional<In> ReadCalls() {
    for (;;) {
      std::optional<In> message = Read();
      if (!message.has_value() || message->calls_size() > 0) return message;
    }
  }

  void set_key(uint32_t key) {
    key_ = key;
    input_.set_key(key);
  }
  // Ends the session as its script returns.
  bool leaves = false;
  v1::SessionOpen opened;  // At a worker: by what.
  v1::SessionFrame Frame(Item item) {
    output_.Add(std::move(item));
    return First({});
  }
  v1::SessionFrame First(Out message) { return SealFrame(output_.Next(std::move(message)), key_); }
  bool Say(Item item) { return Write(Frame(std::move(item))); }
  bool Write(const v1::SessionFrame& frame) { return stream_->Write(frame); }

 private:
  Stream* const stream_;
  uint32_t key_ = kNoPlace;
  SessionOutput<Out, Item> output_;
  SessionInput input_;
};

using WorkersEnd = HandmadeEnd<grpc::ServerReaderWriter<v1::SessionFrame, v1::SessionFrame>,
                               v1::ToRouter, v1::CallTold, v1::ToWorker>;
using RoutersEnd = HandmadeEnd<grpc::ClientReaderWriter<v1::SessionFrame, v1::SessionFrame>,
                               v1::ToWorker, v1::CallAsked, v1::ToRouter>;

// Serves sessions by a script, which is called once the first message is taken. What it leaves open
// stays so until the router ends it.
class HandmadeSessions : public v1::Session::Service {
 public:
  explicit HandmadeSessions(std::function<void(WorkersEnd& end)> script)
      : script_(std::move(script)) {}

  grpc::Status Open(grpc::ServerContext* context,
                    grpc::ServerReaderWriter<v1::SessionFrame, v1::SessionFrame>* stream) override {
    WorkersEnd end(stream);
    const std::optional<v1::ToWorker> first = end.Read();
    if (!first.has_value()) return grpc::Status::CANCELLED;
    end.opened = first->open();
    end.set_key(end.opened.key());
    script_(end);
    while (!end.leaves && !context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
    return grpc::Status::OK;
  }

 private:
  const std::function<void(WorkersEnd&)> script_;
};

// A router's session with a worker.
class HandmadeRouter {
 public:
  explicit HandmadeRouter(const std::string& address, Incarnation meant = 7,
                          grpc::ChannelArguments args = ClusterChannelArguments(), uint32_t key = 5,
                          const std::vector<uint32_t>& ended = {})
      : stub_(v1::Session::NewStub(
            grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args))),
        stream_(stub_->Open(&context_)),
        end_(stream_.get()) {
    v1::ToWorker first;
    first.mutable_open()->set_expected_incarnation(meant);
    first.mutable_open()->set_key(key);
    first.mutable_open()->mutable_ended()->Assign(ended.begin(), ended.end());
    end_.Write(end_.First(std::move(first)));
    end_.set_key(key);
  }
  ~HandmadeRouter() { context_.TryCancel(); }

  RoutersEnd& end() { return end_; }
  grpc::ClientContext& context() { return context_; }

  // Reads until the session's end.
  grpc::Status Finish() {
    v1::SessionFrame frame;
    while (stream_->Read(&frame)) {
    }
    return stream_->Finish();
  }

  static v1::CallAsked Decode(uint64_t call) {
    v1::CallAsked asked;
    asked.set_call(call);
    ToProto(SampleDecode(), asked.mutable_decode());
    return asked;
  }
  static v1::CallAsked Cancel(uint64_t call) {
    v1::CallAsked asked;
    asked.set_call(call);
    asked.mutable_cancel();
    return asked;
  }
  static v1::CallAsked Rebind(uint64_t call) {
    v1::CallAsked asked;
    asked.set_call(call);
    ToProto(WireSamples(1).Rebind(), asked.mutable_rebind());
    return asked;
  }

 private:
  const std::unique_ptr<v1::Session::Stub> stub_;
  grpc::ClientContext context_;
  const std::unique_ptr<grpc::ClientReaderWriter<v1::SessionFrame, v1::SessionFrame>> stream_;
  RoutersEnd end_;
};

}  // namespace baton
