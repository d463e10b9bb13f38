#pragma once

#include <cstdint>

#include "common/base/check.h"
#include "common/base/dtype.h"

// Inlined always: also files that are compiled for a newer instruction set include this, and their
// copy of a function must not serve the others.
#define BATON_OPERAND [[gnu::always_inline]]

namespace baton {

// Numbers of a float type, f32, f16 or bf16, in the memory of a device, which on a CPU is the
// process's. Borrowed. Whatever holds device memory yields no float* but these, and the only way
// from them to a float* is f32(), which knows better than to read a bf16 as one.
struct ConstFloats {
  const void* data = nullptr;
  DType dtype = DType::kF32;

  ConstFloats() = default;
  BATON_OPERAND ConstFloats(const float* values) : data(values) {}  // NOLINT: a float* is f32.
  BATON_OPERAND ConstFloats(const void* values, DType type) : data(values), dtype(type) {}
  BATON_OPERAND explicit operator bool() const { return data != nullptr; }
  BATON_OPERAND const float* f32() const {
    BATON_CHECK(dtype == DType::kF32);
    return static_cast<const float*>(data);
  }
  // From that element on.
  BATON_OPERAND ConstFloats At(int64_t element) const {
    return {static_cast<const char*>(data) + element * SizeOf(dtype), dtype};
  }
};

// The same, to be written. What is written is rounded to the type.
struct Floats {
  void* data = nullptr;
  DType dtype = DType::kF32;

  Floats() = default;
  BATON_OPERAND Floats(float* values) : data(values) {}  // NOLINT: as above.
  BATON_OPERAND Floats(void* values, DType type) : data(values), dtype(type) {}
  BATON_OPERAND operator ConstFloats() const { return {data, dtype}; }  // NOLINT: as T* to const T*
  BATON_OPERAND explicit operator bool() const { return data != nullptr; }
  BATON_OPERAND float* f32() const {
    BATON_CHECK(dtype == DType::kF32);
    return static_cast<float*>(data);
  }
  BATON_OPERAND Floats At(int64_t element) const {
    return {static_cast<char*>(data) + element * SizeOf(dtype), dtype};
  }
};

}  // namespace baton

#undef BATON_OPERAND
