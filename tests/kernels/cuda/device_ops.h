#pragma once

#include <algorithm>
#include <deque>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "kernels/cpu/check_args.h"
#include "kernels/cpu/pack_weights.h"
#include "kernels/cuda/cache.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/norms.h"
#include "kernels/cuda/rows.h"
#include "tests/kernels/cuda/device_fixture.h"

namespace baton::cuda {

// Ends what was launched: UNIMPLEMENTED if nothing was, for the arguments are of a kind that the
// kernels refuse. An error of the device is no answer at all.
inline absl::Status Ended(cudaError_t launched) {
  if (launched == cudaErrorInvalidValue) return absl::UnimplementedError("not on this device");
  if (launched == cudaSuccess) launched = cudaDeviceSynchronize();
  if (launched == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(emulation::LastMessage());
}

// Rows with a stride, or dense ones: up to the end of the last.
inline int64_t SpanOf(int64_t rows, int64_t stride, int64_t width) {
  return rows == 0 ? 0 : (rows - 1) * (stride == 0 ? width : stride) + width;
}

// An array of the host on the device, as far from a multiple of 16 bytes; null stays null.
template <typename T>
class There {
 public:
  There(const T* host, int64_t n) {
    const size_t shift = reinterpret_cast<uintptr_t>(host) % 16 / sizeof(T);
    if (host != nullptr) array_.emplace(std::vector<T>(host, host + n), shift);
  }
  T* data() const { return array_.has_value() ? array_->data() : nullptr; }
  void CopyTo(T* host) const { std::ranges::copy(array_->Read(), host); }

 private:
  std::optional<DeviceArray<T>> array_;
};

// Floats of the host, of that type on the device: as many elements from what vectors can load.
class FloatsThere : public DeviceFloats {
 public:
  FloatsThere(DType dtype, const float* host, int64_t n)
      : DeviceFloats(dtype, std::vector<float>(host, host + n),
                     reinterpret_cast<uintptr_t>(host) / sizeof(float) % 4) {}
  void CopyTo(float* host) const { std::ranges::copy(Read(), host); }
};

// Indexes of blocks or slots that are `by` further on; what is below 0 stays.
template <typename T>
std::vector<T> Moved(const T* indexes, int64_t n, int64_t by) {
  std::vector<T> moved(indexes, indexes + n);
  for (T& index : moved) index += static_cast<T>(index < 0 ? 0 : by);
  return moved;
}

// Behind so many blocks that elements from the first on are more than 2^32, or nearly; a multiple
// of 16, which changes no alignment.
inline int64_t FarBlocks(const CachePlane& plane) {
  return std::min(int64_t{1} << 30, ((int64_t{1} << 33) / plane.block_stride / 16 + 1) * 16);
}

class PlaneThere {
 public:
  // Block 0 of the host's plane is block `far` of this one.
  PlaneThere(const CachePlane& host, int64_t far)
      : host_(host.data),
        bytes_(host.data, host.num_blocks * host.block_stride * SizeOf(host.dtype)),
        scales_(host.scales, host.num_scales),
        plane_(host) {
    const int64_t before = far * host.block_stride * SizeOf(host.dtype);
    plane_.data = reinterpret_cast<std::byte*>(  // Not within an array: no pointer arithmetic.
        reinterpret_cast<uintptr_t>(bytes_.data()) - static_cast<uintptr_t>(before));
    plane_.num_blocks += far;
    plane_.scales = scales_.data();
  }
  const CachePlane& plane() const { return plane_; }
  void CopyBack() const { bytes_.CopyTo(host_); }

 private:
  std::byte* host_;
  There<std::byte> bytes_;
  There<float> scales_;
  CachePlane plane_;
};

// A matrix of the host, as the device packs it.
inline PackedMatrix MatrixThere(const PackedMatrix& host) {
  std::vector<float> values(host.n() * host.k());
  for (int64_t row = 0; row < host.n(); ++row) {
    UnpackRow(Panels(host), row, &values[row * host.k()]);
  }
  return DeviceMatrix(host.dtype(), values, host.n(), host.k());
}

// The operators of a GPU for operands of the host: each call is checked as the CPU checks it, which
// on a device the builder of a batch does; its operands go to memory of the very sizes that they
// need, between canaries, inputs and outputs in these types; and what it wrote comes back.
class DeviceOps : public CpuKernels {
 public:
  DeviceOps(DType in, DType out)
      : CpuKernels(*SelectKernelSet("portable"), 1), in_(in), out_(out) {}
  ~DeviceOps() override {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << emulation::LastMessage();
  }

  absl::Status RmsNorm(const RmsNormArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    RmsNormArgs args = host;
    const There<float> weight(host.weight, host.dim),
        residual(host.residual, SpanOf(host.num_tokens, host.residual_stride, host.dim));
    args.weight = weight.data();
    args.residual = residual.data();
    const int64_t width = host.rows_per_token * host.dim;
    RETURN_IF_ERROR(Run(args, &RmsNormArgs::x, SpanOf(host.num_tokens, host.x_stride, width),
                        SpanOf(host.num_tokens, host.out_stride, width), cuda::RmsNorm));
    if (host.residual != nullptr) residual.CopyTo(host.residual);
    return absl::OkStatus();
  }

  absl::Status LayerNorm(const LayerNormArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    LayerNormArgs args = host;
    const There<float> weight(host.weight, host.dim), bias(host.bias, host.dim);
    args.weight = weight.data();
    args.bias = bias.data();
    return Run(args, &LayerNormArgs::x, SpanOf(host.num_tokens, host.x_stride, host.dim),
               SpanOf(host.num_tokens, host.out_stride, host.dim), cuda::LayerNorm);
  }

  absl::Status Activation(const ActivationArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    const int64_t n = host.num_tokens * host.dim;
    return Run(host, &ActivationArgs::x, n, n, cuda::Activation);
  }

  absl::Status ActivationAndMul(const ActivationAndMulArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    return Run(host, &ActivationAndMulArgs::gate_up,
               SpanOf(host.num_tokens, host.gate_up_stride, 2 * host.dim),
               SpanOf(host.num_tokens, host.out_stride, host.dim), cuda::ActivationAndMul);
  }

  absl::Status Softcap(const SoftcapArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    return RunInPlace(host, host.dim, cuda::Softcap);
  }

  absl::Status Rope(const RopeArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    RopeArgs args = host;
    const int64_t angles = host.num_tokens * host.rotary_dim / 2;
    const There<float> cos(host.cos, angles), sin(host.sin, angles);
    args.cos = cos.data();
    args.sin = sin.data();
    return RunInPlace(args, host.num_heads * host.head_dim, cuda::Rope);
  }

  absl::Status Embedding(const EmbeddingArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    EmbeddingArgs args = host;
    std::deque<PackedMatrix> shards;
    for (int32_t i = 0; i < host.num_shards; ++i) {
      args.shards[i] = &shards.emplace_back(MatrixThere(*host.shards[i]));
    }
    const There<int32_t> tokens(host.tokens, host.num_tokens);
    args.tokens = tokens.data();
    const FloatsThere out(out_, host.out.f32(),
                          SpanOf(host.num_tokens, host.out_stride, shards[0].k()));
    args.out = out;
    RETURN_IF_ERROR(Ended(cuda::Embedding(args, nullptr)));
    out.CopyTo(host.out.f32());
    return absl::OkStatus();
  }

  absl::Status Gemm(const GemmArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    GemmArgs args = host;
    const PackedMatrix weights = MatrixThere(*host.weights);
    args.weights = &weights;
    const FloatsThere a(in_, host.a.f32(), SpanOf(host.m, host.a_stride, weights.k()));
    args.a = a;
    const There<float> bias(host.bias, host.n());
    args.bias = bias.data();
    const FloatsThere out(out_, host.out.f32(), SpanOf(host.m, host.out_stride, host.n()));
    args.out = out;
    const int64_t sums = host.segments == 1 ? 0 : host.segments * host.m * host.n();
    const DeviceFloats scratch(DType::kF32, sums);
    RETURN_IF_ERROR(Ended(cuda::Gemm(args, {scratch.f32(), static_cast<size_t>(sums)}, nullptr)));
    scratch.Read();  // For its guards.
    out.CopyTo(host.out.f32());
    return absl::OkStatus();
  }

  absl::Status FoldPartials(const FoldPartialsArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    FoldPartialsArgs args = host;
    const There<float> bias(host.bias, host.dim);
    args.bias = bias.data();
    const FloatsThere own(out_, host.out.f32(), SpanOf(host.num_tokens, host.out_stride, host.dim));
    const FloatsThere* out = &own;
    std::deque<FloatsThere> parts;
    for (int32_t i = 0; i < host.num_parts; ++i) {
      parts.emplace_back(DType::kF32, host.parts[i],
                         SpanOf(host.num_tokens, host.part_stride, host.dim));
      args.parts[i] = parts[i].f32();
      if (host.parts[i] == host.out.f32()) out = &parts[i];
    }
    args.out = *out;
    RETURN_IF_ERROR(Ended(cuda::FoldPartials(args, nullptr)));
    out->CopyTo(host.out.f32());
    return absl::OkStatus();
  }

  absl::Status ReshapeAndCache(const ReshapeAndCacheArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    const int64_t n = host.num_tokens, heads = host.k_cache.num_heads;
    const FloatsThere key(in_, host.key.f32(),
                          SpanOf(n, host.key_stride, heads * host.k_cache.dim));
    const FloatsThere value(in_, host.value.f32(),
                            SpanOf(n, host.value_stride, heads * host.v_cache.dim));
    const int64_t far = Far(host.k_cache);
    const auto moved = Moved(host.slot_mapping, n, far * host.k_cache.block_size);
    const There<int64_t> slots(moved.data(), n);
    const PlaneThere k(host.k_cache, far), v(host.v_cache, far);
    ReshapeAndCacheArgs args = host;
    args.key = key;
    args.value = value;
    args.slot_mapping = slots.data();
    args.k_cache = k.plane();
    args.v_cache = v.plane();
    RETURN_IF_ERROR(Ended(cuda::ReshapeAndCache(args, nullptr)));
    k.CopyBack();
    v.CopyBack();
    return absl::OkStatus();
  }

  absl::Status SelectRows(const SelectRowsArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    const int64_t size = SizeOf(host.from.dtype), n = host.num_rows;
    const int64_t last = *std::max_element(host.rows, host.rows + n);
    const There<std::byte> from(static_cast<const std::byte*>(host.from.data),
                                SpanOf(last + 1, host.from_stride, host.dim) * size);
    auto* const host_to = static_cast<std::byte*>(host.to.data);
    const There<std::byte> to(host_to, SpanOf(n, host.to_stride, host.dim) * size);
    const There<int32_t> rows(host.rows, n);
    SelectRowsArgs args = host;
    args.from.data = from.data();
    args.rows = rows.data();
    args.to.data = to.data();
    RETURN_IF_ERROR(Ended(cuda::SelectRows(args, nullptr)));
    to.CopyTo(host_to);
    return absl::OkStatus();
  }

  absl::Status AdvanceStep(const AdvanceStepArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    const int64_t n = host.num_seqs;
    const There<int32_t> sampled(host.sampled_tokens, host.num_queries),
        tables(host.block_tables, host.num_queries * host.max_blocks), tokens(host.tokens, n),
        positions(host.positions, n), lens(host.seq_lens, n);
    const There<int64_t> slots(host.slot_mapping, n);
    AdvanceStepArgs args = host;
    const bool in_place = host.sampled_tokens == host.tokens;
    args.sampled_tokens = in_place ? tokens.data() : sampled.data();
    args.block_tables = tables.data();
    args.tokens = tokens.data();
    args.positions = positions.data();
    args.seq_lens = lens.data();
    args.slot_mapping = slots.data();
    RETURN_IF_ERROR(Ended(cuda::AdvanceStep(args, nullptr)));
    if (n == 0) return absl::OkStatus();
    tokens.CopyTo(host.tokens);
    positions.CopyTo(host.positions);
    lens.CopyTo(host.seq_lens);
    slots.CopyTo(host.slot_mapping);
    return absl::OkStatus();
  }

 protected:
  // How many blocks further on on the device those of a plane are.
  virtual int64_t Far(const CachePlane&) const { return 0; }

 private:
  // So many elements of `x` and of `out`, which are the same where the host's are.
  template <typename Args>
  absl::Status Run(Args args, ConstFloats Args::* x, int64_t x_size, int64_t out_size,
                   cudaError_t (*launch)(const Args& args, cudaStream_t stream)) const {
    const float* host_x = (args.*x).f32();
    float* host_out = args.out.f32();
    const FloatsThere from(in_, host_x, x_size), out(out_, host_out, out_size);
    args.*x = host_x == host_out ? out : from;
    args.out = out;
    RETURN_IF_ERROR(Ended(launch(args, nullptr)));
    out.CopyTo(host_out);
    return absl::OkStatus();
  }

  // Rows `x` of so many elements.
  template <typename Args>
  absl::Status RunInPlace(Args args, int64_t width,
                          cudaError_t (*launch)(const Args& args, cudaStream_t stream)) const {
    float* host = args.x.f32();
    const FloatsThere x(in_, host, SpanOf(args.num_tokens, args.x_stride, width));
    args.x = x;
    RETURN_IF_ERROR(Ended(launch(args, nullptr)));
    x.CopyTo(host);
    return absl::OkStatus();
  }

  const DType in_, out_;
};

}  // namespace baton::cuda
