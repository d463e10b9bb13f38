#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/operands.h"
#include "kernels/cuda/weights.h"
#include "kernels/emulation/tensor_core.h"
#include "tests/kernels/kernel_fixture.h"

#if defined(BATON_CUDA_DEVICE)
// The same tests on a device, which has one order of threads and nothing to say.
namespace baton::emulation {
inline void ResetDevice() {}
inline void SetSeed(uint64_t) {}
inline void SetArchitecture(Architecture) {}
inline void SetGpu(std::string_view) {}
inline std::string LastMessage() { return cudaGetErrorString(cudaGetLastError()); }
}  // namespace baton::emulation
#else
#include "kernels/emulation/emulator.h"
#endif

namespace baton::cuda {

// Whose sums the device can be asked for.
inline std::vector<emulation::Architecture> Architectures() {
#if defined(BATON_CUDA_DEVICE)
  int major = 0;
  EXPECT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
  return {major >= 9 ? emulation::Architecture::kHopper : emulation::Architecture::kAmpere};
#else
  return {emulation::Architecture::kAmpere, emulation::Architecture::kHopper};
#endif
}

// Device memory between canaries, aligned as cudaMalloc's or shifted by some elements.
class DeviceBytes {
 public:
  static constexpr size_t kGuard = 256;
  static constexpr std::byte kCanary{0xa5};

  explicit DeviceBytes(const std::vector<std::byte>& content, size_t shift = 0)
      : bytes_(content.size()), front_(kGuard + shift) {
    std::vector<std::byte> all(front_ + bytes_ + kGuard, kCanary);
    std::memcpy(all.data() + front_, content.data(), bytes_);
    EXPECT_EQ(cudaMalloc(&memory_, all.size()), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(memory_, all.data(), all.size(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~DeviceBytes() {
    if (memory_ != nullptr) cudaFree(memory_);
  }
  DeviceBytes(const DeviceBytes&) = delete;

  void* data() const { return static_cast<std::byte*>(memory_) + front_; }
  size_t size() const { return bytes_; }
  // Waits for the device. Fails the test if bytes around the content have changed.
  std::vector<std::byte> Read() const {
    std::vector<std::byte> all(front_ + bytes_ + kGuard);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << emulation::LastMessage();
    EXPECT_EQ(cudaMemcpy(all.data(), memory_, all.size(), cudaMemcpyDeviceToHost), cudaSuccess)
        << emulation::LastMessage();
    for (size_t i = 0; i < all.size(); ++i) {
      if (i >= front_ && i < front_ + bytes_) continue;
      EXPECT_EQ(all[i], kCanary) << "byte " << i << " around " << bytes_ << " bytes was changed";
      if (all[i] != kCanary) break;
    }
    return {all.begin() + front_, all.begin() + front_ + bytes_};
  }

 private:
  size_t bytes_;
  size_t front_;
  void* memory_ = nullptr;
};

// Values of T on the device.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values, size_t shift = 0)
      : bytes_(AsBytes(values), shift * sizeof(T)) {}

  T* data() const { return static_cast<T*>(bytes_.data()); }
  size_t size() const { return bytes_.size() / sizeof(T); }
  std::vector<T> Read() const {
    const std::vector<std::byte> raw = bytes_.Read();
    std::vector<T> out(raw.size() / sizeof(T));
    std::memcpy(out.data(), raw.data(), raw.size());
    return out;
  }

 private:
  static std::vector<std::byte> AsBytes(const std::vector<T>& values) {
    const auto* p = reinterpret_cast<const std::byte*>(values.data());
    return {p, p + values.size() * sizeof(T)};
  }
  DeviceBytes bytes_;
};

// Floats on the device in a type that they have exactly, or are rounded to.
class DeviceFloats {
 public:
  DeviceFloats(DType dtype, const std::vector<float>& values, size_t shift = 0)
      : dtype_(dtype), bytes_(Encode(dtype, values), shift * SizeOf(dtype)) {}
  // An output: all NaN.
  DeviceFloats(DType dtype, int64_t n, size_t shift = 0)
      : DeviceFloats(dtype, std::vector<float>(n, NAN), shift) {}

  operator ConstFloats() const { return {bytes_.data(), dtype_}; }  // NOLINT
  operator Floats() const { return {bytes_.data(), dtype_}; }       // NOLINT
  void* data() const { return bytes_.data(); }
  float* f32() const { return static_cast<float*>(bytes_.data()); }
  std::vector<std::byte> ReadBytes() const { return bytes_.Read(); }
  std::vector<float> Read() const { return Decode(dtype_, bytes_.Read()); }

  static std::vector<float> Decode(DType dtype, const std::vector<std::byte>& bytes) {
    std::vector<float> out(bytes.size() / SizeOf(dtype));
    for (size_t i = 0; i < out.size(); ++i) {
      uint16_t half = 0;
      if (SizeOf(dtype) == 2) std::memcpy(&half, bytes.data() + 2 * i, 2);
      if (dtype == DType::kF32) std::memcpy(&out[i], bytes.data() + 4 * i, 4);
      if (dtype == DType::kBF16) out[i] = ToFloat(Bf16{half});
      if (dtype == DType::kF16) out[i] = ToFloat(F16{half});
    }
    return out;
  }

 private:
  DType dtype_;
  DeviceBytes bytes_;
};

// Weights [n, k] as a device packs them. Behind a row there are NaN instead of zeros: nobody reads
// them.
inline PackedMatrix DeviceMatrix(DType dtype, const std::vector<float>& values, int64_t n,
                                 int64_t k) {
  const int64_t stride = RowStride(k);
  std::vector<float> rows(n * stride, NAN);
  for (int64_t i = 0; i < n * k; ++i) rows[i / k * stride + i % k] = values[i];
  const auto memory = std::make_shared<DeviceFloats>(dtype, rows);
  auto* data = static_cast<std::byte*>(Floats(*memory).data);
  return PackedMatrix(n, k, dtype, WeightFormat::kCuda,
                      Buffer(data, n * stride * SizeOf(dtype), memory));
}

// The types of activations, and a seed for the order in which the emulation runs things.
struct DeviceCase {
  DType in = DType::kF32;
  DType out = DType::kF32;
  uint64_t seed = 1;
};

inline std::string NameOfCase(const testing::TestParamInfo<DeviceCase>& info) {
  return std::string(ToString(info.param.in)) + "_to_" + std::string(ToString(info.param.out)) +
         "_seed_" + std::to_string(info.param.seed);
}

inline std::vector<DeviceCase> DeviceCases() {
  return {{DType::kF32, DType::kF32, 1},   {DType::kF32, DType::kBF16, 2},
          {DType::kBF16, DType::kBF16, 3}, {DType::kF32, DType::kF16, 4},
          {DType::kF16, DType::kF16, 5},   {DType::kBF16, DType::kF32, 6}};
}

// A fresh emulated device for each test; at its end nothing has failed.
class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    emulation::ResetDevice();
    emulation::SetSeed(1);
  }
  void TearDown() override {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << emulation::LastMessage();
  }
};

class DeviceCaseTest : public DeviceTest, public testing::WithParamInterface<DeviceCase> {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    emulation::SetSeed(GetParam().seed);
  }
};

}  // namespace baton::cuda
