// Conversions of the narrow types, for scalars and vectors alike: floats of 8 bits and less, integers of 4 bits and less. A value is the
// low bits of a byte. Floats are rounded to nearest, ties to even, what is out of range as the format has it (infinity, NaN or the largest).
#pragma once

// which codes are no numbers: none, all ones (FN), the one of -0 (FNUZ), the greatest exponent (IEEE)
enum af_specials { AF_NONE, AF_FN, AF_FNUZ, AF_IEEE };

// E bits of exponent with a bias of B, M bits of mantissa
template <int E, int M, int B, af_specials S, class H> AF af_like<H, float> af_narrow_to_float(H h) {
  typedef af_like<H, int32_t> I;
  typedef af_like<H, float> F;
  constexpr int32_t ones = (1 << (E + M)) - 1, infinity = ones - ((1 << M) - 1);
  const I code = af_convert<I>(h);
  const I m = code & ones;
  const F small = af_convert<F>(m) * af_splat<F>(af_as<float>((int32_t)((128 - B - M) << 23)));  // counts 2^(1-B-M)
  const F normal = af_as<F>((I)((m << (23 - M)) + ((127 - B) << 23)));
  F f = m < (1 << M) ? small : normal;
  if constexpr (S == AF_IEEE) f = m == infinity ? af_splat<F>(AF_INF) : f;
  if constexpr (S == AF_FN || S == AF_IEEE) f = m > (S == AF_FN ? ones - 1 : infinity) ? af_splat<F>(AF_NAN) : f;
  if constexpr (S == AF_FNUZ) f = (code & (2 * ones + 1)) == ones + 1 ? af_splat<F>(AF_NAN) : f;
  return af_as<F>((I)(af_as<I>(f) | ((code >> (E + M)) << 31)));
}

template <int E, int M, int B, af_specials S, class F> AF af_like<F, uint8_t> af_float_to_narrow(F f) {
  typedef af_like<F, int32_t> I;
  constexpr int32_t ones = (1 << (E + M)) - 1, infinity = ones - ((1 << M) - 1), sign_bit = ones + 1;
  constexpr int32_t top = S == AF_FN ? ones - 1 : S == AF_IEEE ? infinity - 1 : ones;
  constexpr int32_t over = S == AF_FN ? ones : S == AF_IEEE ? infinity : S == AF_FNUZ ? sign_bit : ones;
  const I bits = af_as<I>(f);
  const I a = bits & 0x7fffffff;
  const I sign = (bits >> (31 - E - M)) & sign_bit;
  // below the least normal number the adder rounds: the last place of 2^(24-B-M) is the least subnormal
  constexpr int32_t magic = (151 - B - M) << 23;
  const I small = af_as<I>((F)(af_as<F>(a) + af_splat<F>(af_as<float>(magic)))) - magic;
  const I normal = ((a + ((1 << (22 - M)) - 1) + ((a >> (23 - M)) & 1)) >> (23 - M)) - ((127 - B) << M);
  I m = a < ((128 - B) << 23) ? small : normal;
  m = a >= 0x7f800000 ? af_splat<I>(over) : m;  // rounding may have carried into the sign
  m = m > top ? af_splat<I>(over) : m;
  if constexpr (S == AF_FNUZ) {
    m = (m == 0) | (m == over) ? m : (m | sign);
    m = a > 0x7f800000 ? af_splat<I>(over) : m;
  } else if constexpr (S == AF_NONE) {
    m = (a > 0x7f800000 ? af_splat<I>(sign_bit) : m) ^ sign;  // there is no NaN: a zero stands for it
  } else {
    m = (a > 0x7f800000 ? af_splat<I>(S == AF_FN ? ones : infinity + (1 << (M - 1))) : m) | sign;
  }
  return af_convert<af_like<F, uint8_t>>(m);
}

#define AF_NARROW_FLOAT(name, E, M, B, S)                               \
  template <class H> AF af_like<H, float> af_##name##_to_float(H h) {   \
    return af_narrow_to_float<E, M, B, S>(h);                           \
  }                                                                     \
  template <class F> AF af_like<F, uint8_t> af_float_to_##name(F f) {   \
    return af_float_to_narrow<E, M, B, S>(f);                           \
  }
AF_NARROW_FLOAT(float8e4m3fn, 4, 3, 7, AF_FN)
AF_NARROW_FLOAT(float8e4m3fnuz, 4, 3, 8, AF_FNUZ)
AF_NARROW_FLOAT(float8e5m2, 5, 2, 15, AF_IEEE)
AF_NARROW_FLOAT(float8e5m2fnuz, 5, 2, 16, AF_FNUZ)
AF_NARROW_FLOAT(float6e2m3, 2, 3, 1, AF_NONE)
AF_NARROW_FLOAT(float6e3m2, 3, 2, 3, AF_NONE)
AF_NARROW_FLOAT(float4e2m1, 2, 1, 1, AF_NONE)

// powers of two from 2^-127 on, without sign and zero; all ones are NaN
template <class H> AF af_like<H, float> af_float8e8m0_to_float(H h) {
  typedef af_like<H, int32_t> I;
  typedef af_like<H, float> F;
  const I code = af_convert<I>(h);
  const I bits = code == 0 ? af_splat<I>(0x00400000) : (I)(code << 23);
  return code == 255 ? af_splat<F>(AF_NAN) : af_as<F>(bits);
}
// to nearest, ties up; what is not positive or too large is NaN
template <class F> AF af_like<F, uint8_t> af_float_to_float8e8m0(F f) {
  typedef af_like<F, int32_t> I;
  const I a = af_as<I>(f);
  const I code = (a + (a > 0x00400000 ? af_splat<I>(0x00400000) : af_splat<I>(0x003fffff))) >> 23;
  return af_convert<af_like<F, uint8_t>>(a <= 0 || a >= 0x7f400000 ? af_splat<I>(255) : code);
}

// integers keep the low bits, as wider ones do
template <int bits, bool is_signed, class H> AF af_like<H, int32_t> af_narrow_to_int(H h) {
  typedef af_like<H, int32_t> I;
  const I code = af_convert<I>(h);
  if constexpr (is_signed) return (I)(code << (32 - bits)) >> (32 - bits);
  else return code & ((1 << bits) - 1);
}
template <int bits, class I> AF af_like<I, uint8_t> af_int_to_narrow(I i) {
  return af_convert<af_like<I, uint8_t>>((I)(i & ((1 << bits) - 1)));
}

#define AF_NARROW_INTEGER(name, bits, is_signed)                          \
  template <class H> AF af_like<H, int32_t> af_##name##_to_int(H h) {     \
    return af_narrow_to_int<bits, is_signed>(h);                          \
  }                                                                       \
  template <class I> AF af_like<I, uint8_t> af_int_to_##name(I i) {       \
    return af_int_to_narrow<bits>(i);                                     \
  }
AF_NARROW_INTEGER(int4, 4, true)
AF_NARROW_INTEGER(uint4, 4, false)
AF_NARROW_INTEGER(int2, 2, true)
AF_NARROW_INTEGER(uint2, 2, false)
