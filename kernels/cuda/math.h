#pragma once

// Elementary functions of kernels, operation by operation those of kernels/cpu/lane_math.h, so that
// a value has the same bits on every device.

#include "kernels/api/model_args.h"
#include "kernels/cuda/floats.h"

namespace baton::cuda {

// e^x within 2 ulp; above 88 it stays at e^88, below -87.3 it is 0.
BATON_DEVICE float Exp(float x) {
  x = x > 88.0f ? 88.0f : x;
  const float magic = 12582912.0f;  // The nearest integer to x / ln 2 sits in its low bits.
  const float n = fmaf(x, 1.44269504088896341f, magic) - magic;
  float r = fmaf(n, -0.693359375f, x);
  r = fmaf(n, 2.12194440e-4f, r);
  // Cephes' minimax polynomial for (e^r - 1 - r) / r^2 on [-ln2/2, ln2/2].
  float y = fmaf(1.9875691500e-4f, r, 1.3981999507e-3f);
  y = fmaf(y, r, 8.3334519073e-3f);
  y = fmaf(y, r, 4.1665795894e-2f);
  y = fmaf(y, r, 1.6666665459e-1f);
  y = fmaf(y, r, 5.0000001201e-1f);
  y = fmaf(y, r * r, r) + 1.0f;
  if (x < -87.3f) return 0.0f;
  return x != x ? x : y * FromBits(static_cast<uint32_t>(static_cast<int>(n) + 127) << 23);
}

// The natural logarithm of a normal x > 0 within 2 ulp.
BATON_DEVICE float Log(float x) {
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
  const uint32_t shifted = ToBits(x) - 0x3f3504f3u;
  const auto e = static_cast<float>(static_cast<int32_t>(shifted) >> 23);
  const float r = FromBits((shifted & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
  const float square = r * r;
  // Cephes' minimax polynomial for log(1 + r).
  float y = fmaf(7.0376836292e-2f, r, -1.1514610310e-1f);
  y = fmaf(y, r, 1.1676998740e-1f);
  y = fmaf(y, r, -1.2420140846e-1f);
  y = fmaf(y, r, 1.4249322787e-1f);
  y = fmaf(y, r, -1.6668057665e-1f);
  y = fmaf(y, r, 2.0000714765e-1f);
  y = fmaf(y, r, -2.4999993993e-1f);
  y = fmaf(y, r, 3.3333331174e-1f);
  y = y * r * square;
  y = fmaf(e, -2.12194440e-4f, y);
  y = fmaf(square, -0.5f, y) + r;
  return fmaf(e, 0.693359375f, y);
}

// 1 - 2 / (e^2x + 1)
BATON_DEVICE float Tanh(float x) { return 1.0f - 2.0f / (Exp(x + x) + 1.0f); }

BATON_DEVICE float Silu(float x) { return x / (1.0f + Exp(0.0f - x)); }

// x Phi(x) by Abramowitz and Stegun, 7.1.26.
BATON_DEVICE float Gelu(float x) {
  const float z = fabsf(x) * 0.70710678118654752f;
  const float t = 1.0f / fmaf(z, 0.3275911f, 1.0f);
  float y = fmaf(1.061405429f, t, -1.453152027f);
  y = fmaf(y, t, 1.421413741f);
  y = fmaf(y, t, -0.284496736f);
  y = fmaf(y, t, 0.254829592f);
  const float tail = y * t * Exp(0.0f - z * z) * 0.5f;  // Phi(-|x|)
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks, Gimpel 2016).
BATON_DEVICE float GeluTanh(float x) {
  const float cubic = fmaf(x * x * x, 0.044715f, x);
  return (x * 0.5f) * (1.0f + Tanh(cubic * 0.7978845608028654f));
}

BATON_DEVICE float Activate(ActivationKind kind, float x) {
  switch (kind) {
    case ActivationKind::kSilu:
      return Silu(x);
    case ActivationKind::kGelu:
      return Gelu(x);
    case ActivationKind::kGeluTanh:
      return GeluTanh(x);
    case ActivationKind::kRelu:
      break;
  }
  return 0.0f > x ? 0.0f : x;
}

}  // namespace baton::cuda
