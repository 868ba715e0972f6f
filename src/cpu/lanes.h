// SPDX-License-Identifier: Apache-2.0
// The registers with one number for each channel that a kernel processes at once.
#pragma once
#include <cstdint>

#include "convert.h"

namespace gluon_roi::cpu {

// The number of channels that kernels process at once: 16 floats or 8 doubles, which for each cell
// of the map fill a cache line and an AVX-512 register. (With 16 doubles, blocks no longer fit in
// the caches, and maps of 200 x 304 took 1.3 to 1.5 times as long.)
constexpr int kCellBytes = 64;
template <class A>
constexpr int kLanes = kCellBytes / static_cast<int>(sizeof(A));
template <class A>
int64_t blocks_of(int64_t channels) {
  return div_up(channels, kLanes<A>);
}

// Sets all elements of a register to a number. GCC turns the array into a broadcast on x86; it
// turns `Register{} + value` into one insertion per element, or into a broadcast and an addition.
// On NEON it builds the array in general registers.
template <class A, class Register>
ALWAYS_INLINE void broadcast(A value, Register* to) {
#ifdef __aarch64__
  if constexpr (std::is_same<A, float>::value) {
    *to = vdupq_n_f32(value);
  } else {
    *to = vdupq_n_f64(value);
  }
#else
  constexpr int kCount = sizeof(Register) / sizeof(A);
  A values[kCount];
  for (A& element : values) element = value;
  load_register(values, to);
#endif
}

// One number for each channel of a block, in as many registers as the level needs. (With plain
// arrays and `omp simd` loops, some of which GCC keeps in memory, ROIPool took 1.3 times as long
// forward and 3.4 times backward.)
template <class A, class Simd>
struct Lanes {
  static constexpr int kRegisters = kCellBytes / Simd::kRegisterBytes;
  static constexpr int kCount = kLanes<A>;
  typedef A Register __attribute__((vector_size(Simd::kRegisterBytes)));
  // The type in memory: aligned like A, and known to alias only arrays of A (unlike memcpy).
  typedef A Stored __attribute__((vector_size(Simd::kRegisterBytes), aligned(alignof(A))));
  static constexpr int kPerRegister = Simd::kRegisterBytes / sizeof(A);
  Register registers[kRegisters];

  // All lanes are `value`.
  ALWAYS_INLINE static Lanes all(A value) {
    Register element;
    broadcast(value, &element);
    Lanes lanes;
    for_each([&](int i) INLINE_LAMBDA { lanes.registers[i] = element; });
    return lanes;
  }
  ALWAYS_INLINE static Lanes load(const A* from) {
    Lanes lanes;
    for_each([&](int i) INLINE_LAMBDA {
      lanes.registers[i] = *reinterpret_cast<const Stored*>(from + i * kPerRegister);
    });
    return lanes;
  }
  ALWAYS_INLINE static Lanes load(const Half* from) {
    A values[kLanes<A>];
    copy_run(from, kLanes<A>, values, Simd{});
    return load(values);
  }
  ALWAYS_INLINE void store(A* to) const {
    for_each([&](int i) INLINE_LAMBDA {
      *reinterpret_cast<Stored*>(to + i * kPerRegister) = registers[i];
    });
  }
  ALWAYS_INLINE void store(Half* to) const {
    A values[kLanes<A>];
    store(values);
    copy_run(values, kLanes<A>, to, Simd{});
  }

  // Load and store lanes that are `step` elements apart. Lanes past `lanes` are loaded as 0 and not
  // stored.
  template <class T>
  ALWAYS_INLINE static Lanes gather(int lanes, const T* from, int64_t step) {
    T values[kLanes<A>] = {};
    for (int lane = 0; lane < lanes; ++lane) values[lane] = from[lane * step];
    return load(values);
  }
  template <class T>
  ALWAYS_INLINE void scatter(int lanes, T* to, int64_t step) const {
    T values[kLanes<A>];
    store(values);
    for (int lane = 0; lane < lanes; ++lane) to[lane * step] = values[lane];
  }

  // Adds the first `lanes` lanes to *sum, one after the other.
  ALWAYS_INLINE void add_each_to(int lanes, A* sum) const {
    A values[kLanes<A>];
    store(values);
    for (int lane = 0; lane < lanes; ++lane) *sum += values[lane];
  }

  // Adds the lanes to those in memory.
  ALWAYS_INLINE void add_to(A* to) const {
    Lanes sums = load(to);
    sums += *this;
    sums.store(to);
  }

  ALWAYS_INLINE Lanes weighted(A weight) const {
    Lanes products = *this;
    products *= all(weight);
    return products;
  }
  ALWAYS_INLINE void add_weighted(const Lanes& other, A weight) { *this += other.weighted(weight); }
  ALWAYS_INLINE Lanes& operator+=(const Lanes& other) {
    for_each([&](int i) INLINE_LAMBDA { registers[i] += other.registers[i]; });
    return *this;
  }
  ALWAYS_INLINE Lanes& operator*=(const Lanes& other) {
    for_each([&](int i) INLINE_LAMBDA { registers[i] *= other.registers[i]; });
    return *this;
  }
  ALWAYS_INLINE Lanes& operator/=(const Lanes& other) {
    for_each([&](int i) INLINE_LAMBDA { registers[i] /= other.registers[i]; });
    return *this;
  }
  // Keeps the greater of both lanes. A NaN in `other` is ignored.
  ALWAYS_INLINE void keep_greater(const Lanes& other) {
    for_each([&](int i) INLINE_LAMBDA {
      registers[i] = other.registers[i] > registers[i] ? other.registers[i] : registers[i];
    });
  }

  // Moves the lanes in which `left` equals `right` to `sum`: adds them there, and sets them to 0
  // here. It masks bits instead of subtracting, because lanes may be infinite. (With a second
  // comparison instead, backward takes 1.06 times as long.)
  ALWAYS_INLINE void move_where_equal(const Lanes& left, const Lanes& right, Lanes* sum) {
    using Bits = decltype(registers[0] == registers[0]);
    for_each([&](int i) INLINE_LAMBDA {
      const Register moved = left.registers[i] == right.registers[i] ? registers[i] : Register{};
      sum->registers[i] += moved;
      registers[i] = reinterpret_cast<Register>(reinterpret_cast<Bits>(registers[i]) ^
                                                reinterpret_cast<Bits>(moved));
    });
  }

  template <class Body>
  ALWAYS_INLINE static void for_each(const Body& body) {
#pragma GCC unroll 8
    for (int i = 0; i < kRegisters; ++i) body(i);
  }
};

// Replaces Simd where a single channel is processed directly, without a channel block.
template <class Simd>
struct OneChannel {};
template <class A, class Simd>
struct Lanes<A, OneChannel<Simd>> {
  static constexpr int kCount = 1;
  A value;

  ALWAYS_INLINE static Lanes all(A value) { return Lanes{value}; }
  template <class T>
  ALWAYS_INLINE static Lanes load(const T* from) {
    return Lanes{load_one(from, Simd{})};
  }
  template <class T>
  ALWAYS_INLINE void store(T* to) const {
    store_one(to, value, Simd{});
  }
  template <class T>
  ALWAYS_INLINE static Lanes gather(int, const T* from, int64_t) {
    return load(from);
  }
  template <class T>
  ALWAYS_INLINE void scatter(int, T* to, int64_t) const {
    store(to);
  }
  ALWAYS_INLINE void add_each_to(int, A* sum) const { *sum += value; }
  ALWAYS_INLINE void add_to(A* to) const { *to += value; }
  ALWAYS_INLINE Lanes weighted(A weight) const { return Lanes{value * weight}; }
  ALWAYS_INLINE void add_weighted(const Lanes& other, A weight) { value += other.value * weight; }
  ALWAYS_INLINE Lanes& operator+=(const Lanes& other) { return value += other.value, *this; }
  ALWAYS_INLINE Lanes& operator*=(const Lanes& other) { return value *= other.value, *this; }
  ALWAYS_INLINE Lanes& operator/=(const Lanes& other) { return value /= other.value, *this; }
};

}  // namespace gluon_roi::cpu
