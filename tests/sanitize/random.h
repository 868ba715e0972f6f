// SPDX-License-Identifier: Apache-2.0
// Random numbers.
#pragma once
#include <cmath>
#include <cstdint>
#include <initializer_list>

namespace sanitize {

// Random numbers of one call, which do not depend on earlier calls. An expression draws one of them
// only: compilers choose in which order they evaluate operands and arguments.
class Random {
 public:
  Random(uint64_t stream, uint64_t call) : state_(stream * 0x9e3779b97f4a7c15u ^ call << 20) {
    for (int i = 0; i < 4; ++i) bits();
  }
  uint64_t bits() {  // splitmix64
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }  // [0, 1)
  double uniform(double low, double high) { return low + (high - low) * unit(); }
  int64_t integer(int64_t low, int64_t high) {  // both included
    return low + static_cast<int64_t>(bits() % static_cast<uint64_t>(high - low + 1));
  }
  bool chance(double probability) { return unit() < probability; }
  double either_sign(double value) { return chance(0.5) ? value : -value; }
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - unit()));
    return radius * std::cos(6.283185307 * unit());
  }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[integer(0, static_cast<int64_t>(values.size()) - 1)];
  }

 private:
  uint64_t state_;
};

}  // namespace sanitize
