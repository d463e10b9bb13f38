#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "baton/v1/generation.pb.h"
#include "common/base/time.h"
#include "common/transport/kv_transport.h"

// Fields that several messages have: checked as they are read, named in what is refused.
namespace baton {

absl::Status CheckIncarnation(absl::string_view field, uint64_t value);

// Labels end up in logs, so they hold printable bytes only (UTF-8 beyond ASCII included), at most
// kMaxLabelBytes.
absl::Status CheckLabel(absl::string_view field, const std::string& value);

// A label of whatever text: of its first bytes those that are printable in ASCII, for others '?'.
std::string LabelOf(const std::string& text);

inline constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
inline constexpr int64_t kMaxWaitUs =
    int64_t{7} * 24 * 3600 * 1'000'000;  // A week, in microseconds.
int64_t ToMicros(Duration d);

absl::StatusOr<PairKey> ReadPairKey(const std::string& bytes);
std::string WritePairKey(const PairKey& key);

// Of a decode worker, in order. Where they are cut tells how many heads the model has.
using DataRanks = google::protobuf::RepeatedPtrField<v1::DataRank>;
absl::StatusOr<std::vector<DataRank>> ReadRanks(absl::string_view field, const DataRanks& from);
void WriteRanks(const std::vector<DataRank>& from, DataRanks* to);

// The same as one endpoint, which routers before protocol 3 carry from worker to worker unread:
// "HEADS@HOST:PORT,HOST:PORT,...", of all ranks in order and of all their heads. Where that is too
// long for them, ":PORT" stands for a rank that has the host of the one before.
absl::StatusOr<std::vector<DataRank>> ReadEndpoint(absl::string_view field,
                                                   const std::string& from);
std::string WriteEndpoint(const DataRanks& ranks);
bool FitsOneEndpoint(const std::vector<DataRank>& ranks);

// Ranks of a worker, in any order.
using RankNumbers = google::protobuf::RepeatedField<int32_t>;
absl::StatusOr<std::vector<int32_t>> ReadLegRanks(absl::string_view field,
                                                  const RankNumbers& from);

}  // namespace baton
