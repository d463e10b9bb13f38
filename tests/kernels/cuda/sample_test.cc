#include "kernels/cuda/sample.h"

#include "tests/kernels/cuda/device_fixture.h"

// What only this device has; ../sample_test.cc and ../score_test.cc have what every device does.
namespace baton::cuda {
namespace {

using SampleRefusalTest = DeviceTest;

TEST_F(SampleRefusalTest, RefusesVocabulariesWhoseSumsCouldOverflow) {
  for (const int32_t vocab_size : {0, kMaxVocabulary + 1}) {
    EXPECT_EQ(Sample({.vocab_size = vocab_size, .num_rows = 1}, {}, nullptr),
              cudaErrorInvalidValue);
    EXPECT_EQ(Score({.vocab_size = vocab_size, .num_rows = 1}, nullptr), cudaErrorInvalidValue);
  }
  EXPECT_EQ(Sample({.vocab_size = 5}, {}, nullptr), cudaSuccess);
  EXPECT_EQ(Score({.vocab_size = 5}, nullptr), cudaSuccess);
}

}  // namespace
}  // namespace baton::cuda
