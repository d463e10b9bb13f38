#pragma once

#include "absl/status/statusor.h"
#include "baton/v1/cluster.pb.h"
#include "baton/v1/decode.pb.h"
#include "baton/v1/prefill.pb.h"
#include "common/node/message.h"
#include "common/rpc/sampling_wire.h"

// Both ways between the ...Request and ...Event structs of common/node/message.h and their wire
// form; the same contract as sampling_wire.h. `worker` of a request is `expected_incarnation`
// there; that of a RebindRequest or SendRequest is the caller's to set.
namespace baton {

inline constexpr int kMaxLabelBytes = 256;    // Tenants, endpoints, numerics ids.
inline constexpr int kMaxReasonBytes = 1024;  // Why a handoff failed; longer ones are cut.

void ToProto(const DecodeRequest& from, v1::DecodeRequest* to);
void ToProto(const PrefillRequest& from, v1::PrefillRequest* to);
void ToProto(const ReservedEvent& from, v1::DecodeEvent* to);
void ToProto(const TokensEvent& from, v1::DecodeEvent* to);
void ToProto(const ScoresEvent& from, v1::DecodeEvent* to);
void ToProto(const ScoresEvent& from, v1::PrefillEvent* to);
void ToProto(const PrefilledEvent& from, v1::PrefillEvent* to);
void ToProto(const HandoffFailedEvent& from, v1::DecodeEvent* to);
void ToProto(const HandoffFailedEvent& from, v1::PrefillEvent* to);
void ToProto(const RebindRequest& from, v1::RebindRequest* to);
void ToProto(const SendRequest& from, v1::SendRequest* to);
void ToProto(const WorkerAudit& from, v1::AuditResponse* to);
void ToProto(const HelloInfo& from, v1::HelloResponse* to);
void ToProto(const WorkerStatus& from, v1::WorkerStatus* to);

absl::StatusOr<DecodeRequest> FromProto(const v1::DecodeRequest& from, const WireLimits& limits);
absl::StatusOr<PrefillRequest> FromProto(const v1::PrefillRequest& from, const WireLimits& limits);
absl::StatusOr<WorkerEvent> FromProto(const v1::DecodeEvent& from, const WireLimits& limits);
absl::StatusOr<WorkerEvent> FromProto(const v1::PrefillEvent& from, const WireLimits& limits);
absl::StatusOr<RebindRequest> FromProto(const v1::RebindRequest& from);
absl::StatusOr<SendRequest> FromProto(const v1::SendRequest& from, const WireLimits& limits);
absl::StatusOr<WorkerAudit> FromProto(const v1::AuditResponse& from);
absl::StatusOr<HelloInfo> FromProto(const v1::HelloResponse& from);
absl::StatusOr<WorkerStatus> FromProto(const v1::WorkerStatus& from);

}  // namespace baton
