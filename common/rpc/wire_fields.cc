#include "common/rpc/wire_fields.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/rpc/message_wire.h"
#include "common/rpc/sampling_wire.h"

namespace baton {
namespace {

absl::Status CheckEndpoint(absl::string_view field, const std::string& value) {
  if (!value.empty()) return CheckLabel(field, value);
  return absl::InvalidArgumentError(absl::StrCat(field, " is empty: must be host:port"));
}

absl::Status CheckCut(absl::string_view field, int size, int64_t heads) {
  if (size != 1 && size != 2 && size != 4 && size != 8) {
    return WireError(absl::StrCat(field, ".size"), size, "must be 1, 2, 4 or 8");
  }
  constexpr int32_t kMostHeads = 1 << 16;
  RETURN_IF_ERROR(CheckRange(absl::StrCat(field, ".num_heads"), heads, 1, kMostHeads));
  if (heads % size == 0 || size % heads == 0) return absl::OkStatus();
  return WireError(absl::StrCat(field, ".num_heads"), heads,
                   absl::StrCat("must divide, or be divided by, the ", size, " ranks"));
}

// As the last of the ranks tells.
int64_t HeadsOfAll(const DataRanks& ranks) {
  const v1::DataRank& last = ranks[ranks.size() - 1];
  return int64_t{last.first_head()} + last.num_heads();
}

// Of HOST:PORT.
absl::string_view HostOf(absl::string_view endpoint) {
  return endpoint.substr(0, endpoint.rfind(':'));
}

// A host that is not repeated is that of the rank before.
std::string JoinEndpoints(const DataRanks& ranks, bool repeats_host) {
  std::string text = absl::StrCat(HeadsOfAll(ranks), "@", ranks[0].endpoint());
  for (int i = 1; i < ranks.size(); ++i) {
    absl::string_view endpoint = ranks[i].endpoint();
    if (!repeats_host && HostOf(endpoint) == HostOf(ranks[i - 1].endpoint())) {
      endpoint.remove_prefix(HostOf(endpoint).size());
    }
    absl::StrAppend(&text, ",", endpoint);
  }
  return text;
}

}  // namespace

absl::Status CheckIncarnation(absl::string_view field, uint64_t value) {
  if (value != 0) return absl::OkStatus();
  return WireError(field, 0, "an incarnation is never 0");
}

absl::Status CheckLabel(absl::string_view field, const std::string& value) {
  if (value.size() > kMaxLabelBytes) {
    return WireError(absl::StrCat(field, ".size"), value.size(),
                     absl::StrCat("at most ", kMaxLabelBytes, " bytes"));
  }
  const bool printable = std::all_of(value.begin(), value.end(),
                                     [](unsigned char c) { return c >= 0x20 && c != 0x7f; });
  if (printable) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": control characters are not allowed"));
}

int64_t ToMicros(Duration d) {
  return std::chrono::duration_cast<std::chrono::microseconds>(d).count();
}

std::string LabelOf(const std::string& text) {
  std::string label = text.substr(0, kMaxLabelBytes);
  std::ranges::replace_if(label, [](unsigned char c) { return c < 0x20 || c >= 0x7f; }, '?');
  return label;
}

absl::StatusOr<std::vector<DataRank>> ReadRanks(absl::string_view field, const DataRanks& from) {
  const int size = from.size();
  const int64_t all_heads = size == 0 ? 0 : HeadsOfAll(from);
  RETURN_IF_ERROR(CheckCut(field, size, all_heads));
  const auto heads = static_cast<int32_t>(all_heads);
  std::vector<DataRank> ranks;
  for (int i = 0; i < size; ++i) {
    RETURN_IF_ERROR(CheckEndpoint(absl::StrCat(field, ".endpoint"), from[i].endpoint()));
    const HeadRange range = HeadsOf(i, size, heads);
    if (from[i].first_head() != range.first || from[i].num_heads() != range.count) {
      return WireError(
          absl::StrCat(field, ".first_head"), from[i].first_head(),
          absl::StrCat("with num_heads ", from[i].num_heads(), ": rank ", i, " of ", size, " has ",
                       range.count, " of ", heads, " heads from ", range.first));
    }
    ranks.push_back({.endpoint = from[i].endpoint(), .heads = range});
  }
  return ranks;
}

void WriteRanks(const std::vector<DataRank>& from, DataRanks* to) {
  for (const DataRank& rank : from) {
    v1::DataRank* out = to->Add();
    out->set_endpoint(rank.endpoint);
    out->set_first_head(rank.heads.first);
    out->set_num_heads(rank.heads.count);
  }
}

absl::StatusOr<std::vector<DataRank>> ReadEndpoint(absl::string_view field,
                                                   const std::string& from) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(from, absl::MaxSplits('@', 1));
  const std::vector<std::string> endpoints = absl::StrSplit(parts.second, ',');
  const int size = static_cast<int>(endpoints.size());
  int32_t heads = 0;
  if (!absl::SimpleAtoi(parts.first, &heads)) {
    return absl::InvalidArgumentError(absl::StrCat(
        field, ": must be as a decode worker of this release told it, HEADS@HOST:PORT,..."));
  }
  RETURN_IF_ERROR(CheckCut(field, size, heads));
  std::vector<DataRank> ranks;
  for (int i = 0; i < size; ++i) {
    const bool has_host = i == 0 || !absl::StartsWith(endpoints[i], ":");
    const std::string endpoint =
        has_host ? endpoints[i] : absl::StrCat(HostOf(ranks.back().endpoint), endpoints[i]);
    RETURN_IF_ERROR(CheckEndpoint(field, endpoint));
    ranks.push_back({.endpoint = endpoint, .heads = HeadsOf(i, size, heads)});
  }
  return ranks;
}

std::string WriteEndpoint(const DataRanks& ranks) {
  const std::string text = JoinEndpoints(ranks, /*repeats_host=*/true);
  return text.size() <= kMaxLabelBytes ? text : JoinEndpoints(ranks, /*repeats_host=*/false);
}

bool FitsOneEndpoint(const std::vector<DataRank>& ranks) {
  DataRanks as_told;
  WriteRanks(ranks, &as_told);
  return WriteEndpoint(as_told).size() <= kMaxLabelBytes;
}

absl::StatusOr<std::vector<int32_t>> ReadLegRanks(absl::string_view field,
                                                  const RankNumbers& from) {
  for (const int32_t rank : from) RETURN_IF_ERROR(CheckRange(field, rank, 0, kMaxRanks - 1));
  return std::vector<int32_t>(from.begin(), from.end());
}

absl::StatusOr<PairKey> ReadPairKey(const std::string& bytes) {
  PairKey key;
  if (bytes.size() != key.size()) {
    return WireError("pair_key.size", bytes.size(), absl::StrCat("must be ", key.size()));
  }
  std::copy(bytes.begin(), bytes.end(), key.begin());
  return key;
}

std::string WritePairKey(const PairKey& key) { return std::string(key.begin(), key.end()); }

}  // namespace baton
