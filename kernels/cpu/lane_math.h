#pragma once

// Elementary functions on the 16-lane vector: range reduction and polynomials in float with fma,
// the same bits on every kernel set.

#include "kernels/cpu/vec.h"

namespace baton {
namespace {

#define BATON_EACH_VEC _Pragma("GCC unroll 4") for (int v = 0; v < kVecs; ++v)

// e^x within 2 ulp for x <= 88, what a softmax takes. Below -87.3 the result is 0. Several at a
// time step by step, as each waits for its steps.
template <int kVecs>
BATON_INLINE void ExpBounded(Vec (&x)[kVecs]) {
  Vec n[kVecs], r[kVecs], y[kVecs];
  // The nearest integer to x / ln 2 sits in the low bits of this sum.
  const Vec magic = Broadcast(12582912.0f);
  BATON_EACH_VEC n[v] = Fma(x[v], Broadcast(1.44269504088896341f), magic);
  BATON_EACH_VEC n[v] = n[v] - magic;
  BATON_EACH_VEC r[v] = Fma(n[v], Broadcast(-0.693359375f), x[v]);
  BATON_EACH_VEC r[v] = Fma(n[v], Broadcast(2.12194440e-4f), r[v]);
  // Cephes' minimax polynomial for (e^r - 1 - r) / r^2 on [-ln2/2, ln2/2].
  BATON_EACH_VEC y[v] = Fma(Broadcast(1.9875691500e-4f), r[v], Broadcast(1.3981999507e-3f));
  BATON_EACH_VEC y[v] = Fma(y[v], r[v], Broadcast(8.3334519073e-3f));
  BATON_EACH_VEC y[v] = Fma(y[v], r[v], Broadcast(4.1665795894e-2f));
  BATON_EACH_VEC y[v] = Fma(y[v], r[v], Broadcast(1.6666665459e-1f));
  BATON_EACH_VEC y[v] = Fma(y[v], r[v], Broadcast(5.0000001201e-1f));
  BATON_EACH_VEC y[v] = Fma(y[v], r[v] * r[v], r[v]);
  BATON_EACH_VEC y[v] = y[v] + Broadcast(1.0f);
#if defined(__AVX512F__)
  // y 2^n in one instruction, rounded as the product is.
  BATON_EACH_VEC {
    const __mmask16 kept = _mm512_cmp_ps_mask(x[v].p[0], _mm512_set1_ps(-87.3f), _CMP_NLT_UQ);
    x[v].p[0] = _mm512_maskz_scalef_ps(kept, y[v].p[0], n[v].p[0]);
  }
#else
  BATON_EACH_VEC {
    BATON_EACH_PART {
      const IntPart exponent = (__builtin_convertvector(n[v].p[i], IntPart) + 127) << 23;
      Part scale;
      std::memcpy(&scale, &exponent, sizeof(scale));
      x[v].p[i] = x[v].p[i] < -87.3f ? Part{} : y[v].p[i] * scale;
    }
  }
#endif
}

BATON_INLINE Vec ExpBounded(const Vec& x) {
  Vec e[] = {x};
  ExpBounded(e);
  return e[0];
}

// The same for any x: above 88 it stays at e^88.
BATON_INLINE Vec Exp(const Vec& x) { return ExpBounded(Min(Broadcast(88.0f), x)); }

// The natural logarithm of a normal x > 0 within 2 ulp.
BATON_INLINE float Log(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
  const uint32_t shifted = bits - 0x3f3504f3u;
  const auto e = static_cast<float>(static_cast<int32_t>(shifted) >> 23);
  const uint32_t mantissa = (shifted & 0x7fffffu) + 0x3f3504f3u;
  float m;
  std::memcpy(&m, &mantissa, sizeof(m));
  const Vec r = Broadcast(m - 1.0f);
  const Vec square = r * r;
  // Cephes' minimax polynomial for log(1 + r).
  Vec y = Broadcast(7.0376836292e-2f);
  y = Fma(y, r, Broadcast(-1.1514610310e-1f));
  y = Fma(y, r, Broadcast(1.1676998740e-1f));
  y = Fma(y, r, Broadcast(-1.2420140846e-1f));
  y = Fma(y, r, Broadcast(1.4249322787e-1f));
  y = Fma(y, r, Broadcast(-1.6668057665e-1f));
  y = Fma(y, r, Broadcast(2.0000714765e-1f));
  y = Fma(y, r, Broadcast(-2.4999993993e-1f));
  y = Fma(y, r, Broadcast(3.3333331174e-1f));
  y = y * r * square;
  y = Fma(Broadcast(e), Broadcast(-2.12194440e-4f), y);
  y = Fma(square, Broadcast(-0.5f), y) + r;
  float lanes[kLanes];
  Store(lanes, Fma(Broadcast(e), Broadcast(0.693359375f), y));
  return lanes[0];
}

// 1 - 2 / (e^2x + 1): absolute error of about 1e-7.
BATON_INLINE Vec Tanh(const Vec& x) {
  const Vec e = Exp(x + x);
  return Broadcast(1.0f) - Broadcast(2.0f) / (e + Broadcast(1.0f));
}

BATON_INLINE Vec Silu(const Vec& x) {
  const Vec e = Exp(Zero() - x);
  return x / (Broadcast(1.0f) + e);
}

// x Phi(x), by the approximation of erfc of Abramowitz and Stegun, 7.1.26: an absolute error of
// 1e-7 |x|, without cancellation below 0.
BATON_INLINE Vec Gelu(const Vec& x) {
  const Vec z = Max(x, Zero() - x) * Broadcast(0.70710678118654752f);
  const Vec t = Broadcast(1.0f) / Fma(z, Broadcast(0.3275911f), Broadcast(1.0f));
  Vec y = Broadcast(1.061405429f);
  y = Fma(y, t, Broadcast(-1.453152027f));
  y = Fma(y, t, Broadcast(1.421413741f));
  y = Fma(y, t, Broadcast(-0.284496736f));
  y = Fma(y, t, Broadcast(0.254829592f));
  const Vec tail = y * t * Exp(Zero() - z * z) * Broadcast(0.5f);  // Phi(-|x|)
  const Vec rest = Broadcast(1.0f) - tail;
  Vec phi;
  BATON_EACH_PART phi.p[i] = x.p[i] < 0.0f ? tail.p[i] : rest.p[i];
  return x * phi;
}

// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks, Gimpel 2016).
BATON_INLINE Vec GeluTanh(const Vec& x) {
  const Vec cubic = Fma(x * x * x, Broadcast(0.044715f), x);
  const Vec t = Tanh(cubic * Broadcast(0.7978845608028654f));
  return (x * Broadcast(0.5f)) * (Broadcast(1.0f) + t);
}

}  // namespace
}  // namespace baton
