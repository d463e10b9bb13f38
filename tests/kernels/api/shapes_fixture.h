#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/api/check_shapes.h"

namespace baton {

// What shapes are checked of lies in a device: whoever follows this address ends the test.
template <typename T>
T* Nowhere() {
  return reinterpret_cast<T*>(uintptr_t{64});
}

inline ConstFloats Input(DType dtype = DType::kBF16) { return {Nowhere<void>(), dtype}; }
inline Floats Output(DType dtype = DType::kBF16) { return {Nowhere<void>(), dtype}; }

inline CachePlane DevicePlane(DType dtype = DType::kBF16) {
  CachePlane plane{.data = Nowhere<std::byte>(),
                   .dtype = dtype,
                   .num_blocks = 4,
                   .num_heads = 2,
                   .block_size = 16,
                   .dim = 8,
                   .block_stride = 2 * 16 * 8};
  if (!IsFp8(dtype)) return plane;
  plane.scales = Nowhere<const float>();
  plane.num_scales = 2;
  return plane;
}

template <typename Args>
void ExpectAllowed(const Args& args) {
  EXPECT_TRUE(CheckShapes(args).ok()) << CheckShapes(args);
}

// `change` makes of allowed arguments such as are refused with `message`.
template <typename Args, typename Change>
void ExpectRefused(Args args, const Change& change, const std::string& message) {
  ExpectAllowed(args);
  change(args);
  const absl::Status status = CheckShapes(args);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find(message), std::string::npos)
      << "wanted: " << message << "\ngot: " << status;
}

// An output of bf16 is not rounded to f32.
template <typename Args>
void ExpectRounded(const Args& args) {
  ExpectRefused(args, [](Args& a) { a.round_to = DType::kF32; },
                "out.dtype = bf16: must be f32 or round_to, f32");
}

}  // namespace baton
