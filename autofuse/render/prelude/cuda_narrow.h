// The narrow types of generated CUDA text: floats of 8 bits and less, integers of 4 bits and less, in the low bits of a byte. Floats are
// rounded to nearest, ties to even, what is out of range as the format has it (infinity, NaN or the largest).
#pragma once

// which codes are no numbers: none, all ones (FN), the one of -0 (FNUZ), the greatest exponent (IEEE)
enum af_specials { AF_NONE, AF_FN, AF_FNUZ, AF_IEEE };

// E bits of exponent with a bias of B, M bits of mantissa
template <int E, int M, int B, af_specials S>
struct af_narrow_float {
  static constexpr int ones = (1 << (E + M)) - 1, infinity = ones - ((1 << M) - 1), sign_bit = ones + 1;
  unsigned char bits;

  af_narrow_float() = default;
  AF_DEVICE explicit af_narrow_float(float x) : bits((unsigned char)encoded(x)) {}

  static AF_DEVICE int encoded(float x) {
    const int word = (int)af_float_to_bits(x), a = word & 0x7fffffff;
    const int sign = (word >> (31 - E - M)) & sign_bit;
    if (a > 0x7f800000) {
      if (S == AF_FNUZ) return sign_bit;
      if (S == AF_NONE) return sign_bit ^ sign;  // there is no NaN: a zero stands for it
      return (S == AF_FN ? ones : infinity + (1 << (M - 1))) | sign;
    }
    constexpr int magic = (151 - B - M) << 23;
    // below the least normal number the adder rounds: the last place of 2^(24-B-M) is the least subnormal
    const int m = a < ((128 - B) << 23)
                      ? (int)af_float_to_bits(af_bits_to_float(a) + af_bits_to_float(magic)) - magic
                      : ((a + ((1 << (22 - M)) - 1) + ((a >> (23 - M)) & 1)) >> (23 - M)) - ((127 - B) << M);
    constexpr int top = S == AF_FN ? ones - 1 : S == AF_IEEE ? infinity - 1 : ones;
    if (a == 0x7f800000 || m > top) {
      return S == AF_FNUZ ? (int)sign_bit : (S == AF_IEEE ? (int)infinity : (int)ones) | sign;
    }
    return S == AF_FNUZ && m == 0 ? 0 : m | sign;
  }
};

template <int E, int M, int B, af_specials S>
AF_DEVICE float af_to_float(af_narrow_float<E, M, B, S> x) {
  typedef af_narrow_float<E, M, B, S> Format;
  const int m = x.bits & Format::ones, sign = x.bits & Format::sign_bit;
  if (S == AF_FNUZ && m == 0 && sign != 0) return AF_NAN;
  float f = m < (1 << M) ? (float)m * af_bits_to_float((128 - B - M) << 23)
                         : af_bits_to_float((m << (23 - M)) + ((127 - B) << 23));
  if (S == AF_IEEE && m == Format::infinity) f = AF_INF;
  if ((S == AF_FN && m == Format::ones) || (S == AF_IEEE && m > Format::infinity)) f = AF_NAN;
  return sign != 0 ? -f : f;
}

typedef af_narrow_float<4, 3, 7, AF_FN> af_float8e4m3fn;
typedef af_narrow_float<4, 3, 8, AF_FNUZ> af_float8e4m3fnuz;
typedef af_narrow_float<5, 2, 15, AF_IEEE> af_float8e5m2;
typedef af_narrow_float<5, 2, 16, AF_FNUZ> af_float8e5m2fnuz;
typedef af_narrow_float<2, 3, 1, AF_NONE> af_float6e2m3;
typedef af_narrow_float<3, 2, 3, AF_NONE> af_float6e3m2;
typedef af_narrow_float<2, 1, 1, AF_NONE> af_float4e2m1;

// Powers of two from 2^-127 on, without sign and zero; all ones are NaN. To nearest, ties up; what is not positive or too large is NaN.
struct af_float8e8m0 {
  unsigned char bits;

  af_float8e8m0() = default;
  AF_DEVICE explicit af_float8e8m0(float x) {
    const int a = (int)af_float_to_bits(x);
    bits = (unsigned char)(a <= 0 || a >= 0x7f400000 ? 255 : (a + (a > 0x00400000 ? 0x00400000 : 0x003fffff)) >> 23);
  }
};

AF_DEVICE float af_to_float(af_float8e8m0 x) {
  if (x.bits == 255) return AF_NAN;
  return af_bits_to_float(x.bits == 0 ? 0x00400000u : (unsigned int)x.bits << 23);
}

// Integers keep the low bits, as wider ones do.
template <int BITS, bool SIGNED>
struct af_narrow_int {
  unsigned char bits;

  af_narrow_int() = default;
  AF_DEVICE explicit af_narrow_int(int x) : bits((unsigned char)(x & ((1 << BITS) - 1))) {}
};

template <int BITS, bool SIGNED>
AF_DEVICE int af_to_int(af_narrow_int<BITS, SIGNED> x) {
  const unsigned int high = (unsigned int)x.bits << (32 - BITS);
  return SIGNED ? (int)high >> (32 - BITS) : (int)(high >> (32 - BITS));
}

typedef af_narrow_int<4, true> af_int4;
typedef af_narrow_int<4, false> af_uint4;
typedef af_narrow_int<2, true> af_int2;
typedef af_narrow_int<2, false> af_uint2;

template <class To, class From>
AF_DEVICE To af_bitcast(From x) {
  static_assert(sizeof(To) == sizeof(From), "af_bitcast keeps the size");
  union Both {
    AF_DEVICE Both() {}
    From from;
    To to;
  } both;
  both.from = x;
  return both.to;
}
