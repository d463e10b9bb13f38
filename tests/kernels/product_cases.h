#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/kernels/op_cases.h"

namespace baton {

// Whose Gemm a body tests, and in which types. A program has those of the CPU, whose operands are
// always f32 (product_cases_cpu.cc), or those of a GPU (cuda/product_cases_device.cc).
struct ProductCase {
  std::string ops;
  DType weights = DType::kF32;
  DType activations = DType::kF32;  // Their values are of this type.
  DType out = DType::kF32;          // What results are rounded to.
  uint64_t seed = 1;
};
std::vector<ProductCase> ProductCases();

// As MakeOps of op_cases.h.
std::unique_ptr<CpuKernels> MakeProductOps(const ProductCase& which);

struct ProductSize {
  int64_t m, n, k;
  int32_t segments = 1;

  std::string Name() const {
    return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + " in " +
           std::to_string(segments);
  }
};

// Around the edges of what they compute at a time: tiles, panels, blocks of the cache, stages.
struct ProductSizes {
  std::vector<ProductSize> any;
  int64_t long_k = 0;  // Of several blocks or stages.
  std::vector<ProductSize> segmented;
  std::vector<ProductSize> divided;  // Among ranks.
};
ProductSizes SizesOfProducts();

}  // namespace baton
