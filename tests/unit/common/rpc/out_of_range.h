#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "common/rpc/message_wire.h"
#include "common/rpc/seal.h"
#include "tests/unit/common/rpc/wire_samples.h"

// The rows of out_of_range_test.cc.
namespace baton {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr int32_t kBeyondVocab = kLimits.vocab_size;
inline constexpr int32_t kBeyondLength = kLimits.max_model_len + 1;
inline constexpr int64_t kMax64 = std::numeric_limits<int64_t>::max();
inline constexpr int32_t kMax32 = std::numeric_limits<int32_t>::max();

struct Row {
  std::string field;  // Message.field of the .proto file.
  std::string named;  // What the refusal says.
  std::function<absl::Status()> send;
};

template <typename Proto>
absl::Status Read(const Proto& proto) {
  if constexpr (requires { FromProto(proto, kLimits); }) {
    return FromProto(proto, kLimits).status();
  } else {
    return FromProto(proto).status();
  }
}

// Rows of one message: a valid one of them in which one value is spoilt.
template <typename Proto>
class RowsOf {
 public:
  template <typename Value>
  RowsOf(std::vector<Row>* rows, const Value& valid) : rows_(rows) {
    ToProto(valid, &valid_);
    EXPECT_TRUE(Read(valid_).ok()) << Read(valid_);
  }
  RowsOf& Bad(const std::string& field, const std::string& named,
              std::function<void(Proto*)> spoil) {
    rows_->push_back({field, named, [valid = valid_, spoil] {
                        Proto proto = valid;
                        spoil(&proto);
                        return Read(proto);
                      }});
    return *this;
  }
  // Damaged on its way: nothing of it is looked at.
  RowsOf& Sealed(const std::string& message) {
    rows_->push_back({message + ".crc32c", "crc32c", [valid = valid_] {
                        Proto proto = valid;
                        Seal(&proto);
                        EXPECT_TRUE(CheckSeal(proto).ok());
                        proto.set_crc32c(proto.crc32c() + 1);
                        return CheckSeal(proto);
                      }});
    return *this;
  }

 private:
  std::vector<Row>* rows_;
  Proto valid_;
};

// Decode, Prefill, Rebind and Send with what they carry.
void AddRequests(std::vector<Row>* all);

// The rows of the `ranks` of a message.
template <typename P, typename Get>
void AddRanks(RowsOf<P>& rows, const std::string& message, const std::string& named, Get get) {
  const auto bad = [&](const std::string& field, const std::string& what,
                       std::function<void(v1::DataRank*)> spoil) {
    rows.Bad(field, named + what, [=](P* p) { spoil(get(p)->Mutable(0)); });
  };
  // Heads {first, count} of each rank.
  const auto bad_heads = [&](const std::string& field, const std::string& what,
                             std::vector<std::pair<int32_t, int32_t>> heads) {
    rows.Bad(field, named + what, [=](P* p) {
      const v1::DataRank valid = get(p)->Get(0);
      get(p)->Clear();
      for (const auto& [first, count] : heads) {
        v1::DataRank* rank = get(p)->Add();
        *rank = valid;
        rank->set_first_head(first);
        rank->set_num_heads(count);
      }
    });
  };
  bad("DataRank.endpoint", ".endpoint is empty", [](auto* r) { r->clear_endpoint(); });
  bad("DataRank.endpoint", ".endpoint", [](auto* r) { r->set_endpoint("a\n:1"); });
  bad("DataRank.endpoint", ".endpoint.size",
      [](auto* r) { r->set_endpoint(std::string(257, 'a')); });
  bad_heads(message + ".ranks", ".size", {});
  bad_heads(message + ".ranks", ".size", {{0, 1}, {1, 1}, {2, 1}});
  bad_heads(message + ".ranks", ".size", std::vector<std::pair<int32_t, int32_t>>(16, {0, 1}));
  bad_heads("DataRank.num_heads", ".num_heads", {{0, 0}});
  bad_heads("DataRank.num_heads", ".num_heads", {{0, -4}});
  bad_heads("DataRank.num_heads", ".num_heads", {{0, (1 << 16) + 1}});
  bad_heads("DataRank.num_heads", ".num_heads", {{0, 2}, {2, 1}});   // 3 of 2 ranks.
  bad_heads("DataRank.num_heads", ".first_head", {{0, 3}, {3, 1}});  // Not halves.
  bad_heads("DataRank.first_head", ".first_head", {{1, 3}});         // Head 0 of nobody.
  bad_heads("DataRank.first_head", ".first_head", {{0, 1}, {0, 1}, {1, 1}, {3, 1}});
  bad_heads("DataRank.first_head", ".num_heads", {{INT32_MAX, INT32_MAX}});
  bad_heads("DataRank.first_head", ".num_heads", {{-1, 1}});
}

}  // namespace baton
