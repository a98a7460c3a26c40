// Conversions of half types, for scalars and vectors alike. A half value is its 16 bits.
#pragma once

template <class H> AF af_like<H, float> af_bfloat_to_float(H h) {
  typedef af_like<H, uint32_t> U;
  return af_as<af_like<H, float>>(af_convert<U>(h) << 16);
}

// round to nearest, ties to even; NaN stays NaN
template <class F> AF af_like<F, uint16_t> af_float_to_bfloat(F f) {
  typedef af_like<F, uint32_t> U;
  typedef af_like<F, uint16_t> H;
  const U u = af_as<U>(f);
  const U rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const U quiet = (u >> 16) | 0x40u;
  return af_convert<H>(f != f ? quiet : rounded);
}

// bit by bit, where the machine has no instruction: exponent moved by a multiplication, so subnormals come out right
template <class H> AF af_like<H, float> af_half_bits_to_float(H h) {
  typedef af_like<H, uint32_t> U;
  typedef af_like<H, float> F;
  const U u = af_convert<U>(h);
  const F scaled = af_as<F>((u & 0x7fffu) << 13) * 0x1p112f;
  const U wide = af_as<U>(scaled);
  const U magnitude = scaled >= 65536.0f ? (wide | 0x7f800000u) : wide;
  return af_as<F>(magnitude | ((u & 0x8000u) << 16));
}
template <class F> AF af_like<F, uint16_t> af_half_bits_from_float(F f) {
  typedef af_like<F, uint32_t> U;
  typedef af_like<F, uint16_t> H;
  const U u = af_as<U>(f);
  const U a = u & 0x7fffffffu;
  const U sign = (u >> 16) & 0x8000u;
  const U special = a > 0x7f800000u ? af_splat<U>(0x7e00u) : af_splat<U>(0x7c00u);
  const U small = af_as<U>(af_as<F>(a) + 0.5f) - 0x3f000000u;  // the adder rounds subnormals, ties to even
  const U normal = (a + 0xc8000fffu + ((a >> 13) & 1u)) >> 13;
  const U finite = a < 0x38800000u ? small : normal;
  const U magnitude = a >= 0x47800000u ? special : finite;
  return af_convert<H>(magnitude | sign);
}

// a double cut off to a float whose last bit says whether something is missing: rounding that further is rounding once
template <class D> AF af_like<D, float> af_to_odd(D d) {
  if constexpr (af_shape<D>::scalar) {
    const float f = (float)d;
    if ((double)f == d || d != d) return f;
    const int32_t bits = af_as<int32_t>(f) - ((double)__builtin_fabsf(f) > __builtin_fabs(d));
    return af_as<float>((int32_t)(bits | 1));
  } else {
    return af_lanes<af_like<D, float>>([&](int64_t l) { return af_to_odd((double)d[l]); });
  }
}

#if defined(__F16C__) && !defined(__clang__)
typedef short af_s8 __attribute__((vector_size(16)));
typedef short af_s16 __attribute__((vector_size(32)));
#endif

template <class H> AF af_like<H, float> af_half_to_float(H h) {
#if defined(__F16C__) && !defined(__clang__)
#if defined(__AVX512F__)
  if constexpr (af_shape<H>::lanes == 16)
    return __builtin_ia32_vcvtph2ps512_mask(af_as<af_s16>(h), af_f16{}, (uint16_t)-1, 4);
#endif
  if constexpr (af_shape<H>::lanes == 8) return __builtin_ia32_vcvtph2ps256(af_as<af_s8>(h));
  if constexpr (af_shape<H>::scalar) return __builtin_ia32_vcvtph2ps256(af_s8{(short)h})[0];
#endif
  return af_half_bits_to_float(h);
}
template <class F> AF af_like<F, uint16_t> af_float_to_half(F f) {
#if defined(__F16C__) && !defined(__clang__)
#if defined(__AVX512F__)
  if constexpr (af_shape<F>::lanes == 16)
    return af_as<af_like<F, uint16_t>>(__builtin_ia32_vcvtps2ph512_mask(f, 0, af_s16{}, (uint16_t)-1));
#endif
  if constexpr (af_shape<F>::lanes == 8) return af_as<af_like<F, uint16_t>>(__builtin_ia32_vcvtps2ph256(f, 0));
  if constexpr (af_shape<F>::scalar) return (uint16_t)__builtin_ia32_vcvtps2ph256(af_f8{f}, 0)[0];
#endif
  return af_half_bits_from_float(f);
}
