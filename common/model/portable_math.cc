#include "common/model/portable_math.h"

#include <bit>
#include <cmath>
#include <cstdint>

namespace baton {
namespace {

// ln 2 and pi / 2 split so that the product of the leading part with a small integer is exact
// (fdlibm, e_exp.c and e_rem_pio2.c).
constexpr double kLn2High = 6.93147180369123816490e-01;
constexpr double kLn2Low = 1.90821492927058770002e-10;
constexpr double kHalfPi1 = 1.57079632673412561417e+00;
constexpr double kHalfPi2 = 6.07710050630396597660e-11;
constexpr double kHalfPi2Tail = 2.02226624879595063154e-21;

// 1 + x (1/first + x^2/(first (first+1) (first+2)) ...) style series with alternating signs:
// sum over j of (-1)^j x2^j / ((first)(first+1)...(first+2j-1)).
double AlternatingSeries(double x2, int first, int terms) {
  double y = 1.0;
  for (int j = terms; j > 0; --j) {
    const double divisor = static_cast<double>(first + 2 * j - 2) * (first + 2 * j - 1);
    y = 1.0 - y * x2 / divisor;
  }
  return y;
}

}  // namespace

double PortableExp(double x) {
  if (x < -708.0) return 0.0;
  if (std::isnan(x)) return x;
  const double n = std::floor(x * 1.44269504088896338700 + 0.5);
  const double r = (x - n * kLn2High) - n * kLn2Low;
  // Taylor in Horner form; |r| <= ln2 / 2 makes the first term left out 4e-18.
  static constexpr double kInverse[] = {1.0 / 13, 1.0 / 12, 1.0 / 11, 1.0 / 10, 1.0 / 9, 1.0 / 8,
                                        1.0 / 7,  1.0 / 6,  1.0 / 5,  1.0 / 4,  1.0 / 3, 1.0 / 2};
  double y = 1.0;
  for (const double inverse : kInverse) y = 1.0 + y * r * inverse;
  y = 1.0 + y * r;
  const auto exponent = static_cast<uint64_t>(static_cast<int64_t>(n) + 1023);
  return y * std::bit_cast<double>(exponent << 52);
}

double PortableLog(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int64_t exponent = static_cast<int64_t>(bits >> 52) - 1023;
  double mantissa = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull);
  if (mantissa > 1.41421356237309504880) {
    mantissa *= 0.5;
    ++exponent;
  }
  // ln m = 2 atanh((m - 1) / (m + 1)).
  const double s = (mantissa - 1.0) / (mantissa + 1.0);
  const double s2 = s * s;
  double y = 0.0;
  for (int k = 23; k >= 3; k -= 2) y = (y + 1.0 / k) * s2;
  const double n = static_cast<double>(exponent);
  return n * kLn2High + (2.0 * (s + s * y) + n * kLn2Low);
}

SinCos PortableSinCos(double x) {
  // Beyond this the reduction loses everything; a hostile config must not overflow the cast below.
  if (!(std::fabs(x) <= 0x1p40)) return {std::nan(""), std::nan("")};
  const double n = std::floor(x * 6.36619772367581382433e-01 + 0.5);
  const double r = ((x - n * kHalfPi1) - n * kHalfPi2) - n * kHalfPi2Tail;
  const double r2 = r * r;
  const double sin = r * AlternatingSeries(r2, 2, 9);
  const double cos = AlternatingSeries(r2, 1, 9);
  switch (static_cast<int64_t>(n) & 3) {
    case 0:
      return {sin, cos};
    case 1:
      return {cos, -sin};
    case 2:
      return {-sin, -cos};
    default:
      return {-cos, sin};
  }
}

}  // namespace baton
