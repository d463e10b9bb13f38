#include "kernels/api/portable_math.h"

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
