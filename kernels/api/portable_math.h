#pragma once

namespace baton {

// Elementary functions in double that give the same bits on every machine (the C library's choose
// an implementation by CPU). Within 2 ulp in their ranges.

// Finite x > 0, not subnormal.
double PortableLog(double x);

struct SinCos {
  double sin = 0;
  double cos = 0;
};

// |x| <= 2^20.
SinCos PortableSinCos(double x);

}  // namespace baton
