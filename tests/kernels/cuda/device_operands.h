#pragma once

// Operands of the host on a device, for the operator library's.

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/kernels/cuda/device_ops.h"

namespace baton::cuda {

// Ends what was enqueued.
inline absl::Status Finished(const absl::Status& enqueued) {
  RETURN_IF_ERROR(enqueued);
  if (cudaDeviceSynchronize() == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(emulation::LastMessage());
}

// Floats of the host in that type if it holds them exactly, else in f32.
inline DeviceFloats ExactlyThere(DType type, const float* host, int64_t n) {
  const std::vector<float> values(host, host + (host == nullptr ? 0 : n));
  const std::vector<float> rounded = Rounded(type, values);
  const bool exact = std::memcmp(rounded.data(), values.data(), values.size() * 4) == 0;
  return DeviceFloats(exact ? type : DType::kF32, values);
}
inline ConstFloats OrNull(const float* host, const DeviceFloats& there) {
  return host == nullptr ? ConstFloats() : ConstFloats(there);
}

// An output of the host in memory of that type. What the device has not written stays.
class OutputThere {
 public:
  OutputThere(DType type, float* host, int64_t rows, int64_t stride, int64_t width)
      : host_(host),
        stride_(stride),
        width_(width),
        before_(Rounded(type, {host, host + SpanOf(rows, stride, width)})),
        there_(type, before_) {}
  Floats there() const { return there_; }
  absl::Status CopyBack() const {
    const std::vector<float> out = there_.Read();
    for (size_t i = 0; i < out.size(); ++i) {
      if (std::memcmp(&out[i], &before_[i], 4) == 0) continue;
      if (static_cast<int64_t>(i) % stride_ >= width_) {
        return absl::InternalError("element " + std::to_string(i) + " between rows was changed");
      }
      host_[i] = out[i];
    }
    return absl::OkStatus();
  }

 private:
  float* host_;
  int64_t stride_, width_;
  std::vector<float> before_;
  DeviceFloats there_;
};

// The arrays of scores and scales.
class ScoresThere {
 public:
  ScoresThere(const ScoreOptions& scores, const AttentionScales& scales, int64_t num_seqs,
              int64_t heads, int64_t kv_heads)
      : slopes_(scores.alibi_slopes, Rows(num_seqs, scores.alibi_stride, heads)),
        sinks_(scores.sinks, heads),
        q_(scales.q_descale, Rows(num_seqs, scales.stride, kv_heads)),
        k_(scales.k_descale, Rows(num_seqs, scales.stride, kv_heads)),
        v_(scales.v_descale, Rows(num_seqs, scales.stride, kv_heads)) {}
  void Set(ScoreOptions& scores) const {
    scores.alibi_slopes = slopes_.data();
    scores.sinks = sinks_.data();
  }
  void Set(AttentionScales& scales) const {
    scales.q_descale = q_.data();
    scales.k_descale = k_.data();
    scales.v_descale = v_.data();
  }

 private:
  static int64_t Rows(int64_t num_seqs, int64_t stride, int64_t width) {
    return stride == 0 ? width : (num_seqs - 1) * stride + width;
  }
  There<float> slopes_, sinks_, q_, k_, v_;
};

}  // namespace baton::cuda
