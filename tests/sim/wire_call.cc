#include "tests/sim/wire_call.h"

#include <google/protobuf/stubs/logging.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <variant>

#include "common/base/status.h"
#include "common/rpc/message_wire.h"
#include "common/rpc/seal.h"

namespace baton::sim {
namespace {

template <typename Proto, typename Request>
Proto Sealed(const Request& request) {
  Proto proto;
  ToProto(request, &proto);
  Seal(&proto);
  return proto;
}

template <typename Proto, typename Request>
std::string EncodeFor(const Request& request, Incarnation worker) {
  Proto proto;
  ToProto(request, &proto);
  proto.set_expected_incarnation(worker);
  Seal(&proto);
  return proto.SerializeAsString();
}

template <typename Proto>
absl::StatusOr<Proto> Parse(const std::string& bytes) {
  Proto proto;
  if (!proto.ParseFromString(bytes)) return absl::UnknownError("the library cannot read it");
  return proto;
}

template <typename Event, typename Proto>
constexpr bool kIsOf = requires(const Event& event, Proto* proto) { ToProto(event, proto); };

template <typename Proto>
std::string EncodeEvent(const WorkerEvent& event, EventSealer& sealer) {
  Proto proto;
  std::visit(
      [&proto](const auto& e) {
        if constexpr (kIsOf<std::decay_t<decltype(e)>, Proto>) ToProto(e, &proto);
      },
      event);
  sealer.Seal(&proto);
  return proto.SerializeAsString();
}

template <typename Proto>
std::string EncodeAlive(EventSealer& sealer) {
  Proto proto;
  proto.mutable_alive();
  sealer.Seal(&proto);
  return proto.SerializeAsString();
}

template <typename Proto>
bool Same(const std::string& bytes, const std::string& sent) {
  const absl::StatusOr<Proto> read = Parse<Proto>(bytes);
  return read.ok() && read->SerializeAsString() == sent;
}

// What a server makes of a request: the library refuses what it cannot read, without a reason.
template <typename Proto, typename MakeMail>
std::optional<AnyWorkerMail> TakeAs(const RequestGate& gate, const std::string& bytes,
                                 PeerEnd* refusal, MakeMail make_mail) {
  const absl::StatusOr<Proto> proto = Parse<Proto>(bytes);
  if (!proto.ok()) {
    *refusal = {.code = absl::StatusCode::kInternal};
    return std::nullopt;
  }
  auto request = gate.Take(*proto);
  if (request.ok()) return make_mail(*std::move(request));
  *refusal = {.code = request.status().code(),
              .message = std::string(request.status().message()),
              .reason = ReasonOf(request.status().code())};
  return std::nullopt;
}

}  // namespace

void SilenceLibraryLogs() { google::protobuf::SetLogHandler(nullptr); }

bool ReadsTheSame(WireKind kind, const std::string& bytes, const std::string& sent) {
  switch (kind) {
    case WireKind::kDecode:
      return Same<v1::DecodeRequest>(bytes, sent);
    case WireKind::kPrefill:
      return Same<v1::PrefillRequest>(bytes, sent);
    case WireKind::kRebind:
      return Same<v1::RebindRequest>(bytes, sent);
    case WireKind::kSend:
      return Same<v1::SendRequest>(bytes, sent);
    case WireKind::kDecodeEvent:
      return Same<v1::DecodeEvent>(bytes, sent);
    case WireKind::kPrefillEvent:
      return Same<v1::PrefillEvent>(bytes, sent);
    case WireKind::kHello:
      return Same<v1::HelloResponse>(bytes, sent);
    case WireKind::kStatus:
      return Same<v1::WorkerStatus>(bytes, sent);
  }
  return false;
}

std::string Encode(const RebindRequest& request, Incarnation worker) {
  return EncodeFor<v1::RebindRequest>(request, worker);
}
std::string Encode(const SendRequest& request, Incarnation worker) {
  return EncodeFor<v1::SendRequest>(request, worker);
}
std::string Encode(const HelloInfo& hello) {
  return Sealed<v1::HelloResponse>(hello).SerializeAsString();
}
std::string Encode(const WorkerStatus& status) {
  return Sealed<v1::WorkerStatus>(status).SerializeAsString();
}

std::optional<AnyWorkerMail> TakeRequest(const RequestGate& gate, WireKind kind, CallId call,
                                   const std::string& bytes, PeerEnd* refusal) {
  switch (kind) {
    case WireKind::kDecode:
      return TakeAs<v1::DecodeRequest>(gate, bytes, refusal, [&](DecodeRequest request) {
        return DecodeOpened{.call = call, .request = std::move(request)};
      });
    case WireKind::kPrefill:
      return TakeAs<v1::PrefillRequest>(gate, bytes, refusal, [&](PrefillRequest request) {
        return PrefillOpened{.call = call, .request = std::move(request)};
      });
    case WireKind::kRebind:
      return TakeAs<v1::RebindRequest>(gate, bytes, refusal, [](RebindRequest request) {
        return RebindAsked{std::move(request)};
      });
    default:
      return TakeAs<v1::SendRequest>(gate, bytes, refusal, [](SendRequest request) {
        return SendAsked{std::move(request)};
      });
  }
}

absl::StatusOr<HelloInfo> TakeHello(const std::string& bytes) {
  ASSIGN_OR_RETURN(const v1::HelloResponse proto, Parse<v1::HelloResponse>(bytes));
  return baton::TakeHello(proto);
}

absl::StatusOr<WorkerStatus> TakeStatus(const std::string& bytes, Incarnation worker) {
  ASSIGN_OR_RETURN(const v1::WorkerStatus proto, Parse<v1::WorkerStatus>(bytes));
  return baton::TakeStatus(proto, worker);
}

template <typename Proto, typename Request>
WireCall::WireCall(const Request& request, Proto proto)
    : is_decode_(std::is_same_v<Request, DecodeRequest>),
      worker_(request.worker),
      opening_(proto.SerializeAsString()),
      sealer_(proto.crc32c()),
      events_(kSimLimits, MaxOutputs(request), proto.crc32c()) {}

WireCall::WireCall(const DecodeRequest& request)
    : WireCall(request, Sealed<v1::DecodeRequest>(request)) {}
WireCall::WireCall(const PrefillRequest& request)
    : WireCall(request, Sealed<v1::PrefillRequest>(request)) {}

std::string WireCall::Send(const WorkerEvent& event) {
  return is_decode_ ? EncodeEvent<v1::DecodeEvent>(event, sealer_)
                    : EncodeEvent<v1::PrefillEvent>(event, sealer_);
}

std::string WireCall::SendAlive() {
  return is_decode_ ? EncodeAlive<v1::DecodeEvent>(sealer_)
                    : EncodeAlive<v1::PrefillEvent>(sealer_);
}

template <typename Proto>
absl::StatusOr<std::optional<WorkerEvent>> WireCall::ReceiveAs(const std::string& bytes) {
  const absl::StatusOr<Proto> event = Parse<Proto>(bytes);
  if (event.ok()) return events_.Take(*event);
  events_.OnUnread();
  return event.status();
}

absl::StatusOr<std::optional<WorkerEvent>> WireCall::Receive(const std::string& bytes) {
  return is_decode_ ? ReceiveAs<v1::DecodeEvent>(bytes) : ReceiveAs<v1::PrefillEvent>(bytes);
}

}  // namespace baton::sim
