#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
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

}  // namespace baton
