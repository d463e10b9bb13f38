// What product_cases.h asks of the CPU.
#include "tests/kernels/product_cases.h"

namespace baton {

std::vector<ProductCase> ProductCases() {
  std::vector<ProductCase> cases;
  for (const std::string& set : KernelSets()) {
    for (const ProductTypes& types : kProductTypes) {
      cases.push_back({.ops = set, .weights = types.weights, .activations = types.activations});
    }
  }
  return cases;
}

std::unique_ptr<CpuKernels> MakeProductOps(const ProductCase& which) {
  return MakeTestKernels(which.ops);
}

ProductSizes SizesOfProducts() {
  ProductSizes sizes;
  for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 25, 33}) {
    for (const ProductSize& size :
         {ProductSize{m, 1, 1}, {m, 16, 8}, {m, 17, 33}, {m, 63, 70}, {m, 80, 129}}) {
      sizes.any.push_back(size);
    }
  }
  sizes.long_k = 2055;
  sizes.segmented = {{1, 33, 64, 2},  {3, 17, 128, 4},  {5, 70, 256, 8},
                     {7, 97, 768, 8}, {13, 31, 192, 2}, {40, 37, 4096, 8}};
  sizes.divided = {{1, 66, 256, 8},   {5, 66, 512, 8}, {29, 66, 768, 8}, {520, 40, 256, 8},
                   {14, 66, 4096, 8}, {3, 66, 384, 4}, {3, 66, 192, 2}};
  return sizes;
}

}  // namespace baton
