// SPDX-License-Identifier: Apache-2.0
// Sines, cosines and exponentials, with the same bits on every processor and device. Those of C
// libraries and of CUDA differ in the last bit, and glibc's differ between processors with and
// without fused multiply-adds.
//
// Worked numbers: sine_cosine(30) is {0.49999999999999994, 0.8660254037844387}, sine_cosine(90) is
// {1, 0}, and exponential(1.0) is 2.718281828459045.
#pragma once
#include "../types.h"

namespace gluon_roi {

// ---- Angles -------------------------------------------------------------------------------------

struct SineCosine {
  double sine, cosine;
};

// Of the angle `quarters` * pi / 2 + x, for integers from -4 to 4 and |x| <= pi / 4: Taylor series
// whose first omitted term is below half an ulp.
HOST_DEVICE SineCosine sine_cosine_from_quarters(double quarters, double x) {
  const double square = x * x;
  double sine = 1.0, cosine = 1.0;
  for (int n = 18; n >= 2; n -= 2) {
    cosine = 1.0 - cosine * square / (n * (n - 1.0));
    sine = 1.0 - sine * square / (n * (n + 1.0));
  }
  sine = x * sine;
  const int quarter = quarters != quarters ? 0 : (static_cast<int>(quarters) + 4) % 4;
  switch (quarter) {
    case 1: return {cosine, -sine};
    case 2: return {-sine, -cosine};
    case 3: return {-cosine, sine};
    default: return {sine, cosine};
  }
}

// Of an angle in degrees, degrees + rest, with a rest below the last digit of `degrees`. Multiples
// of 90 are exact: fmod() is, and so is the difference from the nearest multiple of 90.
HOST_DEVICE SineCosine sine_cosine(double degrees, double rest = 0.0) {
  constexpr double kRadiansPerDegree = 3.14159265358979323846 / 180.0;
  const double turned = fmod(degrees, 360.0);
  const double quarters = rint(turned / 90.0);
  return sine_cosine_from_quarters(quarters, (turned - 90.0 * quarters + rest) * kRadiansPerDegree);
}

// Of an angle from -2 pi to 2 pi.
HOST_DEVICE SineCosine sine_cosine_of_radians(double angle) {
  // The first 33 bits of pi / 2, whose multiples are exact, and the remainder.
  constexpr double kQuarterHigh = 0x1.921fb544p+0, kQuarterLow = 0x1.0b4611a626331p-34;
  const double quarters = rint(angle / (kQuarterHigh + kQuarterLow));
  return sine_cosine_from_quarters(quarters,
                                   angle - quarters * kQuarterHigh - quarters * kQuarterLow);
}

// ---- Exponentials -------------------------------------------------------------------------------

// exp(x): 2^n times a Taylor series for an argument of at most 0.35, whose first omitted term is
// below half an ulp.
HOST_DEVICE double exponential(double x) {
  if (!(x > -800.0)) return x != x ? x : 0.0;  // exp(-800) is below the smallest subnormal
  if (x > 710.0) return static_cast<double>(INFINITY);
  constexpr double kLog2 = 0.69314718055994530942;
  // The first 32 bits of kLog2, whose multiples are exact, and the remainder.
  constexpr double kLog2High = 0x1.62e42feep-1, kLog2Low = 0x1.a39ef35793c76p-33;
  const double n = rint(x / kLog2), rest = x - n * kLog2High - n * kLog2Low;
  double sum = 1.0;
  for (int i = 15; i >= 1; --i) sum = 1.0 + sum * rest / i;
  return ldexp(sum, static_cast<int>(n));
}

// exp(x) in float32, with the bits of glibc's expf on processors without fused multiply-adds: 2^n
// with n in steps of 1/32, times a cubic, in double precision. MXNet calls expf, and its boxes are
// reproduced. (The nearest float differs from glibc's for one number in 2000; glibc's with and
// without fused multiply-adds for one in 10^8.)
//
// Source of the cubic: expf of Arm's Optimized Routines, which is glibc's.
HOST_DEVICE float exponential(float x) {
  static constexpr double kPowers[32] = {
      0x1.0000000000000p+0, 0x1.059b0d3158574p+0, 0x1.0b5586cf9890fp+0, 0x1.11301d0125b51p+0,
      0x1.172b83c7d517bp+0, 0x1.1d4873168b9aap+0, 0x1.2387a6e756238p+0, 0x1.29e9df51fdee1p+0,
      0x1.306fe0a31b715p+0, 0x1.371a7373aa9cbp+0, 0x1.3dea64c123422p+0, 0x1.44e086061892dp+0,
      0x1.4bfdad5362a27p+0, 0x1.5342b569d4f82p+0, 0x1.5ab07dd485429p+0, 0x1.6247eb03a5585p+0,
      0x1.6a09e667f3bcdp+0, 0x1.71f75e8ec5f74p+0, 0x1.7a11473eb0187p+0, 0x1.82589994cce13p+0,
      0x1.8ace5422aa0dbp+0, 0x1.93737b0cdc5e5p+0, 0x1.9c49182a3f090p+0, 0x1.a5503b23e255dp+0,
      0x1.ae89f995ad3adp+0, 0x1.b7f76f2fb5e47p+0, 0x1.c199bdd85529cp+0, 0x1.cb720dcef9069p+0,
      0x1.d5818dcfba487p+0, 0x1.dfc97337b9b5fp+0, 0x1.ea4afa2a490dap+0, 0x1.f50765b6e4540p+0};
  constexpr double kStepsPerUnit = 0x1.71547652b82fep+5;  // 32 / log(2)
  if (!(x > -105.0f)) return x != x ? x : 0.0f;           // below the smallest subnormal
  if (x > 89.0f) return static_cast<float>(INFINITY);
  const double steps = static_cast<double>(x) * kStepsPerUnit, n = rint(steps), rest = steps - n;
  constexpr double kCubic = 0x1.c6af84b912394p-20, kSquare = 0x1.ebfce50fac4f3p-13;
  constexpr double kLinear = 0x1.62e42ff0c52d6p-6;
  const double factor = (kCubic * rest + kSquare) * (rest * rest) + (kLinear * rest + 1.0);
  const int whole = static_cast<int>(n);
  return static_cast<float>(factor * ldexp(kPowers[whole & 31], whole >> 5));
}

}  // namespace gluon_roi
