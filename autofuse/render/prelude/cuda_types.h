// Types of generated CUDA text: half-width floats, vectors of lanes, and the few type traits that the prelude needs.
#pragma once

template <class T> struct af_same { typedef T type; };
template <class T> struct af_plain { typedef T type; };
template <class T> struct af_plain<const T> { typedef T type; };
template <class T> struct af_plain<T&> { typedef typename af_plain<T>::type type; };
template <bool C, class T> struct af_if {};
template <class T> struct af_if<true, T> { typedef T type; };
template <class A, class B> struct af_equal { static constexpr bool value = false; };
template <class A> struct af_equal<A, A> { static constexpr bool value = true; };

// N lanes side by side, aligned as a whole where a vector load can take them.
template <class T, int N>
struct __align__(sizeof(T) * N <= 16 && (N & (N - 1)) == 0 ? sizeof(T) * N : sizeof(T)) af_pack {
  T lane[N];
};

template <class T, int N>
AF_DEVICE af_pack<T, N> af_fill(T value) {
  af_pack<T, N> out;
#pragma unroll
  for (int k = 0; k < N; ++k) out.lane[k] = value;
  return out;
}

AF_DEVICE float af_bfloat_bits_to_float(unsigned short bits) { return af_bits_to_float((unsigned int)bits << 16); }

// Stored in 16 bits, computed in float. Trivial, so that it may stand in shared memory.
struct __align__(2) af_half {
  unsigned short bits;
  af_half() = default;
  AF_DEVICE explicit af_half(float x) : bits(af_float_to_half_bits(x)) {}
};

struct __align__(2) af_bfloat {
  unsigned short bits;
  af_bfloat() = default;
  AF_DEVICE explicit af_bfloat(float x) : bits(af_float_to_bfloat_bits(x)) {}
};

// A double cut off to a float whose last bit says whether something is missing: rounding that further is rounding once.
AF_DEVICE float af_to_odd(double x) {
  const float f = (float)x;
  if ((double)f == x || x != x) return f;
  return af_bits_to_float((af_float_to_bits(f) - (fabs((double)f) > fabs(x) ? 1u : 0u)) | 1u);
}

AF_DEVICE float af_to_float(af_half x) { return af_half_bits_to_float(x.bits); }
AF_DEVICE float af_to_float(af_bfloat x) { return af_bfloat_bits_to_float(x.bits); }
AF_DEVICE af_half af_to_half(float x) { return af_half(x); }
AF_DEVICE af_bfloat af_to_bfloat(float x) { return af_bfloat(x); }

#include "cuda_narrow.h"

template <class T>
struct af_is_half {
  static constexpr bool value = af_equal<T, af_half>::value || af_equal<T, af_bfloat>::value;
};
template <class T>
struct af_is_float {
  static constexpr bool value = af_equal<T, float>::value || af_equal<T, double>::value || af_is_half<T>::value;
};

// The type of an operation on two: that of `c ? a : b`.
template <class A, class B>
struct af_both {
  typedef typename af_plain<decltype(true ? *(A*)0 : *(B*)0)>::type type;
};

#define AF_HALF_OPERATOR(op)                                                                                    \
  template <class T>                                                                                            \
  AF_DEVICE typename af_if<af_is_half<T>::value, T>::type operator op(T a, T b) {                               \
    return T(af_to_float(a) op af_to_float(b));                                                                 \
  }
AF_HALF_OPERATOR(+)
AF_HALF_OPERATOR(-)
AF_HALF_OPERATOR(*)
AF_HALF_OPERATOR(/)
#undef AF_HALF_OPERATOR

#define AF_HALF_TEST(op)                                                                                        \
  template <class T>                                                                                            \
  AF_DEVICE typename af_if<af_is_half<T>::value, bool>::type operator op(T a, T b) {                            \
    return af_to_float(a) op af_to_float(b);                                                                    \
  }
AF_HALF_TEST(<)
AF_HALF_TEST(<=)
AF_HALF_TEST(>)
AF_HALF_TEST(>=)
AF_HALF_TEST(==)
AF_HALF_TEST(!=)
#undef AF_HALF_TEST

template <class T>
AF_DEVICE typename af_if<af_is_half<T>::value, T>::type operator-(T a) {
  return T(-af_to_float(a));
}
