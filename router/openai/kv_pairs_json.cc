#include "router/openai/kv_pairs_json.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "router/pair_fit.h"

namespace baton {
namespace {

const KvPeer* FindPeer(const WorkerView& prefill, const WorkerView& decode) {
  const auto is_it = [&](const KvPeer& peer) {
    return peer.incarnation == decode.hello.incarnation;
  };
  const auto it = std::ranges::find_if(prefill.status.kv_peers, is_it);
  return it == prefill.status.kv_peers.end() ? nullptr : &*it;
}

// Why K/V does not go over NCCL, of two workers between which nothing went yet; empty: it will.
std::string WhyNoNccl(const HelloInfo& prefill, const HelloInfo& decode) {
  const std::string& here = prefill.nccl_version;
  const std::string& there = decode.nccl_version;
  if (here.empty()) return absl::StrCat("the prefill worker has no NCCL: ", prefill.why_no_nccl);
  if (there.empty()) return absl::StrCat("the decode worker has no NCCL: ", decode.why_no_nccl);
  if (here == there) return "";
  return absl::StrCat("NCCL ", here, " at the prefill worker and ", there,
                      " at the decode worker: give both the same");
}

Json PairJson(const WorkerView& prefill, const WorkerView& decode) {
  const KvPeer* peer = FindPeer(prefill, decode);
  const KvPeer links = peer == nullptr ? KvPeer() : *peer;
  std::string why = WhyNoPair(prefill.hello, decode.hello);
  std::string transport = "none";
  if (why.empty()) {
    why = WhyNoNccl(prefill.hello, decode.hello);
    transport = why.empty() ? "nccl?" : "tcp";
    if (links.links_over_tcp > 0) {
      transport = links.links_over_nccl > 0 ? "nccl+tcp" : "tcp";
      if (why.empty()) why = links.why_tcp;
    } else if (links.links_over_nccl > 0) {
      transport = "nccl";
    }
  }
  return {{"prefill", prefill.address},
          {"decode", decode.address},
          {"transport", std::move(transport)},
          {"security", KvSecurityOf(prefill.hello)},
          {"nccl", prefill.hello.nccl_version},
          {"decode_nccl", decode.hello.nccl_version},
          {"links_over_nccl", links.links_over_nccl},
          {"links_over_tcp", links.links_over_tcp},
          {"why", std::move(why)}};
}

}  // namespace

Json KvPairsJson(const RouterView& view) {
  Json pairs = Json::array();
  size_t num_pairs = 0;
  for (const bool fit : {false, true}) {
    for (const WorkerView& prefill : view.workers) {
      if (prefill.role != Role::kPrefill || !prefill.healthy) continue;
      for (const WorkerView& decode : view.workers) {
        const bool counts = decode.role == Role::kDecode && decode.healthy &&
                            GroupOf(decode.hello) == GroupOf(prefill.hello) &&
                            (decode.pair == prefill.pair) == fit;
        if (!counts || ++num_pairs > kMostKvPairs) continue;
        pairs.push_back(PairJson(prefill, decode));
      }
    }
  }
  const size_t left_out = num_pairs - std::min(num_pairs, kMostKvPairs);
  return {{"kv_pairs", std::move(pairs)}, {"kv_pairs_left_out", left_out}};
}

}  // namespace baton
