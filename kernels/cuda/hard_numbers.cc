#include "kernels/cuda/hard_numbers.h"

#include <bit>
#include <cstddef>

namespace baton::cuda {
namespace {

// What is in a row of an operand, along k.
enum class Kind {
  kWide,           // From 2^-10 to 2^10.
  kNear,           // Of nearly one size, so that sums lose most of their bits.
  kRepeatsSteps,   // Wide; a step of 16 is the one before it, every other time.
  kRepeatsHalves,  // The same of 8.
  kTiny,           // Subnormals alone, beside the largest numbers, and zeros.
};
constexpr int kNumKinds = 5;

// A row repeats itself as another does with the other sign: then a step takes away what the one
// before it, or its own first half, has added, and leaves what was cut.
int Back(Kind kind, int k) {
  if (kind == Kind::kRepeatsSteps && k / 16 % 2 == 1) return 16;
  if (kind == Kind::kRepeatsHalves && k / 8 % 2 == 1) return 8;
  return 0;
}

class Numbers {
 public:
  explicit Numbers(DType dtype)
      : mantissa_bits_(dtype == DType::kBF16 ? 7 : 10),
        least_(dtype == DType::kBF16 ? -126 : -14) {}

  uint16_t Zero() const { return 0; }
  uint16_t One() const { return Bits(0, 0); }
  // Of random sign and mantissa.
  uint16_t Between(int first, int last) {
    const int exponent = first + Below(last - first + 1);
    return Signed(Bits(exponent, Below(1 << mantissa_bits_)));
  }
  uint16_t OfKind(Kind kind) { return kind == Kind::kNear ? Between(-1, 1) : Between(-10, 10); }
  uint16_t Subnormal() { return Between(least_ - mantissa_bits_, least_); }
  // Times a subnormal it is nearly 1, if no more than that.
  uint16_t Huge() { return Between(-least_ - 2, -least_ + 1); }
  // -n / 8 for a random n below 144: a weight of down to 2^-18.
  uint16_t Score() {
    const int n = Below(144);
    if (n == 0) return Zero();
    const int exponent = std::bit_width(static_cast<unsigned>(n)) - 1;
    const int mantissa = (n << mantissa_bits_ >> exponent) - (1 << mantissa_bits_);
    return Bits(exponent - 3, mantissa) | 0x8000;
  }
  int Below(int count) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int>((state_ >> 33) % static_cast<uint64_t>(count));
  }

 private:
  uint16_t Bits(int exponent, int mantissa) const {
    const int above = exponent - least_;
    if (above >= 0) return static_cast<uint16_t>((above + 1) << mantissa_bits_ | mantissa);
    return static_cast<uint16_t>((1 << mantissa_bits_ | mantissa) >> -above);
  }
  uint16_t Signed(uint16_t bits) {
    return static_cast<uint16_t>(bits | (Below(2) == 0 ? 0 : 0x8000));
  }

  const int mantissa_bits_;
  const int least_;  // The exponent of the least number that is not subnormal.
  uint64_t state_ = 1;
};

// Rows of tokens or of weights. Where k is 3 of 8 tokens are subnormal and weights huge, where it
// is 5 of 8 it is the other way.
template <size_t kRows, size_t kDepth>
void FillOperand(Numbers& numbers, bool is_weights, uint16_t (&rows)[kRows][kDepth]) {
  const int tiny = is_weights ? 5 : 3, huge = is_weights ? 3 : 5;
  for (size_t row = 0; row < kRows; ++row) {
    const auto kind = static_cast<Kind>(row % kNumKinds);
    for (int k = 0; k < static_cast<int>(kDepth); ++k) {
      uint16_t& number = rows[row][k];
      if (const int back = Back(kind, k); back > 0) {
        number = rows[row][k - back] ^ (is_weights ? 0x8000 : 0);
      } else if (k % 8 == tiny) {
        number = numbers.Subnormal();
      } else if (k % 8 == huge) {
        number = numbers.Huge();
      } else {
        number = kind == Kind::kTiny ? numbers.Zero() : numbers.OfKind(kind);
      }
    }
  }
}

}  // namespace

HardNumbers::HardNumbers(DType dtype)
    : queries{}, query_starts{0, kTokens}, lengths{kKeys, kKeys}, table{0, 1} {
  Numbers numbers(dtype);
  FillOperand(numbers, false, tokens);
  FillOperand(numbers, true, weights);
  for (int i = 0; i < kTokens; ++i) queries[i][i] = numbers.One();
  for (int key = 0; key < kKeys; ++key) {
    for (int column = 0; column < kDim; ++column) {
      const auto kind = static_cast<Kind>(column % kNumKinds);
      const int back = Back(kind, key);
      // A score that repeats itself keeps its sign: it is of a weight.
      keys[key][column] = back > 0              ? keys[key - back][column]
                          : kind == Kind::kNear ? numbers.Zero()
                                                : numbers.Score();
      values[key][column] = back > 0              ? values[key - back][column] ^ 0x8000
                            : kind == Kind::kTiny ? numbers.Subnormal()
                                                  : numbers.OfKind(kind);
    }
  }
}

}  // namespace baton::cuda
