// Transcendental functions in float, for scalars and vectors by the same operations; double goes to libm, lane by lane.
//
// exp, log: below 2 units in the last place. tanh, erf, log1p, sin, cos: below 1e-6 relative. Sources: Cephes (exp, log, sin, cos: the
// reductions, and all polynomials but exp's), the rational minimax forms of tanh and erf that Eigen and XLA use.
#pragma once

#define AF_C(x) af_splat<F>(x)

template <class V> struct af_single {
  static constexpr bool value = sizeof(af_element<V>) == 4 && af_kind<af_element<V>>::floating;
};

// p * 2^n in one instruction, rounded once: the same bits as by the two factors below
#if defined(__AVX512F__) && defined(__has_builtin)
#if __has_builtin(__builtin_ia32_scalefps512_mask)
#define AF_SCALEF 1
#endif
#endif

// 2^(k/16) by one instruction as well: exp then needs a cubic polynomial only (Tang 1989)
#if AF_SCALEF
#if __has_builtin(__builtin_ia32_permvarsf512_mask)
#define AF_EXP_STEPS 16
alignas(64) static const float af_exp_powers[16] = {
    0x1.0p0f, 0x1.0b5586p0f, 0x1.172b84p0f, 0x1.2387a6p0f, 0x1.306fep0f, 0x1.3dea64p0f, 0x1.4bfdaep0f, 0x1.5ab07ep0f,
    0x1.6a09e6p0f, 0x1.7a1148p0f, 0x1.8ace54p0f, 0x1.9c4918p0f, 0x1.ae89fap0f, 0x1.c199bep0f, 0x1.d5818ep0f, 0x1.ea4afap0f,
};
template <class F> AF F af_exp_power(af_ints<F> k) {  // by the lowest four bits
  if constexpr (sizeof(F) == 64)
    return af_as<F>(__builtin_ia32_permvarsf512_mask(*(const af_f16*)af_exp_powers, af_as<af_i16>(k), *(const af_f16*)af_exp_powers, -1));
  else if constexpr (sizeof(F) == 32)
    return af_as<F>(__builtin_shuffle(*(const af_f8*)af_exp_powers, *(const af_f8*)(af_exp_powers + 8), af_as<af_i8>(k)));
  else if constexpr (af_shape<F>::scalar) return af_exp_powers[k & 15];
  else return af_lanes<F>([&](int64_t l) { return af_exp_powers[k[l] & 15]; });
}
#endif
#endif

template <class F> AF F af_exp32(F x) {
  typedef af_ints<F> I;
  const F top = AF_C(89.0f), bottom = AF_C(-104.5f);
  F c = af_lesser(top, x);
  c = af_greater(bottom, c);
#if AF_EXP_STEPS
  const F magic = AF_C(786432.0f);  // 1.5 * 2^19: sums with it are rounded to sixteenths
#else
  const F magic = AF_C(12582912.0f);  // 1.5 * 2^23
#endif
  const F shifted = c * AF_C(1.44269504088896341f) + magic;
  const F n = shifted - magic;
  F r = n * AF_C(-0.693359375f) + c;
  r = n * AF_C(2.12194440e-4f) + r;
#if AF_EXP_STEPS
  const F power = af_exp_power<F>(af_as<I>(shifted));
  F p = AF_C(1.6666667e-1f) * r + AF_C(0.5f);
  p = p * r + AF_C(1.0f);
  const F first = power * r;
  p = p * first + power;
#else
  // least relative error of 1 + r + c2 r^2 + ... + c6 r^6 on [-log(2)/2, log(2)/2]: 3.1e-9
  F p = AF_C(1.3814320568e-3f) * r + AF_C(8.3688510660e-3f);
  p = p * r + AF_C(4.1668401084e-2f);
  p = p * r + AF_C(1.6666519524e-1f);
  p = p * r + AF_C(4.9999993373e-1f);
  p = p * r + AF_C(1.0f);
  p = p * r + AF_C(1.0f);
#endif
#if AF_SCALEF
  if constexpr (sizeof(F) == 64) return af_as<F>(__builtin_ia32_scalefps512_mask(af_as<af_f16>(p), af_as<af_f16>(n), af_as<af_f16>(p), -1, 4));
#endif
  // 2^n in two factors: their product may pass the range either way, and the result then rounds to inf or a subnormal
  I whole = af_as<I>(shifted) - af_as<I>(magic);
#if AF_EXP_STEPS
  whole = whole >> 4;
#endif
  const I half = whole >> 1;
  const F low = af_as<F>((I)((half + 127) << 23));
  const F high = af_as<F>((I)((whole - half + 127) << 23));
  return p * low * high;
}

template <class F> AF F af_log32(F x) {
  typedef af_ints<F> I;
  const F least = AF_C(0x1p-126f);
  const auto tiny = x < least;
  const F scaled = tiny ? x * AF_C(0x1p23f) : x;
  const I bits = af_as<I>(scaled);
  // mantissa in [sqrt(1/2), sqrt(2)): subtracting the bits of sqrt(1/2) carries into the exponent
  const I e = (bits - 0x3f3504f3) >> 23;
  const F m = af_as<F>((I)(bits - (e << 23))) - AF_C(1.0f);
  const F k = af_convert<F>(e) - (tiny ? AF_C(23.0f) : AF_C(0.0f));
  const F z = m * m;
  F p = AF_C(7.0376836292e-2f) * m + AF_C(-1.1514610310e-1f);
  p = p * m + AF_C(1.1676998740e-1f);
  p = p * m + AF_C(-1.2420140846e-1f);
  p = p * m + AF_C(1.4249322787e-1f);
  p = p * m + AF_C(-1.6668057665e-1f);
  p = p * m + AF_C(2.0000714765e-1f);
  p = p * m + AF_C(-2.4999993993e-1f);
  p = p * m + AF_C(3.3333331174e-1f);
  p = p * m + AF_C(-0.5f);
  // each sum has one product only, so that there is one way to contract it: scalars and vectors then agree to the last bit
  const F low = k * AF_C(-2.12194440e-4f) + AF_C(0.0f);
  F r = m + (p * z + low);
  r = k * AF_C(0.693359375f) + r;
  const F inf = AF_C(AF_INF);
  r = x == inf ? inf : r;
  r = x == AF_C(0.0f) ? -inf : r;
  return ((x < AF_C(0.0f)) | (x != x)) ? AF_C(AF_NAN) : r;
}

template <class F> AF F af_tanh32(F x) {
  const F limit = AF_C(9.0f);
  F c = af_lesser(limit, x);
  c = af_greater(-limit, c);
  const F s = c * c;
  F p = AF_C(-2.76076847742355e-16f) * s + AF_C(2.00018790482477e-13f);
  p = p * s + AF_C(-8.60467152213735e-11f);
  p = p * s + AF_C(5.12229709037114e-08f);
  p = p * s + AF_C(1.48572235717979e-05f);
  p = p * s + AF_C(6.37261928875436e-04f);
  p = p * s + AF_C(4.89352455891786e-03f);
  F q = AF_C(1.19825839466702e-06f) * s + AF_C(1.18534705686654e-04f);
  q = q * s + AF_C(2.26843463243900e-03f);
  q = q * s + AF_C(4.89352518554385e-03f);
  const F r = c * (p / q);  // c * p would lose bits of tiny arguments
  // the quotient may pass 1 by a unit
  const F one = AF_C(1.0f);
  const F bounded = af_lesser(one, r);
  const F both = af_greater(-one, bounded);
  return af_abs(x) < AF_C(0.0004f) ? x : both;
}

template <class F> AF F af_erf32(F x) {
  const F limit = AF_C(4.0f);
  F c = af_lesser(limit, x);
  c = af_greater(-limit, c);
  const F s = c * c;
  F p = AF_C(-2.72614225801306e-10f) * s + AF_C(2.77068142495902e-08f);
  p = p * s + AF_C(-2.10102402082508e-06f);
  p = p * s + AF_C(-5.69250639462346e-05f);
  p = p * s + AF_C(-7.34990630326855e-04f);
  p = p * s + AF_C(-2.95459980854025e-03f);
  p = p * s + AF_C(-1.60960333262415e-02f);
  F q = AF_C(-1.45660718464996e-05f) * s + AF_C(-2.13374055278905e-04f);
  q = q * s + AF_C(-1.68282697438203e-03f);
  q = q * s + AF_C(-7.37332916720468e-03f);
  q = q * s + AF_C(-1.42647390514189e-02f);
  const F r = c * (p / q);  // c * p would lose bits of tiny arguments
  const F one = AF_C(1.0f);
  const F bounded = af_lesser(one, r);
  return af_greater(-one, bounded);
}

template <class F> AF F af_log1p32(F x) {
  // log(1 + x) corrected by what the sum 1 + x lost (Kahan)
  const F one = AF_C(1.0f);
  const F u = x + one;
  const F d = u - one;
  const F r = af_log32(u) * (x / d);
  const F chosen = d == AF_C(0.0f) ? x : r;
  return u == AF_C(AF_INF) ? u : chosen;
}

// sine (shift 0) or cosine (shift 1); arguments past 2^16 lose the reduction's accuracy and go to libm
template <int shift, class F> AF F af_sincos32(F x) {
  typedef af_ints<F> I;
  const F magic = AF_C(12582912.0f);
  const F shifted = x * AF_C(0.636619772367581343f) + magic;
  const F n = shifted - magic;
  F r = n * AF_C(-1.5703125f) + x;
  r = n * AF_C(-4.837512969970703125e-4f) + r;
  r = n * AF_C(-7.54953362047672271728515625e-8f) + r;
  r = n * AF_C(-2.5633378e-12f) + r;
  const I quadrant = (I)(af_as<I>(shifted) + shift);
  const F s = r * r;
  F sine = AF_C(-1.9515295891e-4f) * s + AF_C(8.3321608736e-3f);
  sine = sine * s + AF_C(-1.6666654611e-1f);
  sine = sine * s * r + r;
  F cosine = AF_C(2.443315711809948e-5f) * s + AF_C(-1.388731625493765e-3f);
  cosine = cosine * s + AF_C(4.166664568298827e-2f);
  cosine = cosine * s + AF_C(-0.5f);
  cosine = cosine * s + AF_C(1.0f);
  const F value = (quadrant & 1) != 0 ? cosine : sine;
  F result = (quadrant & 2) != 0 ? -value : value;
  if constexpr (shift == 0) result = af_abs(x) < AF_C(1e-4f) ? x : result;  // keeps negative zero
  const auto huge = af_abs(x) > AF_C(65536.0f);
  if (__builtin_expect(af_any(huge), 0)) {
    if constexpr (shift == 0) return huge ? af_libm_sin(x) : result;
    else return huge ? af_libm_cos(x) : result;
  }
  return result;
}

#undef AF_C

template <class V> AF V af_exp(V x) {
  if constexpr (af_single<V>::value) return af_exp32(x);
  else return af_libm_exp(x);
}
template <class V> AF V af_log(V x) {
  if constexpr (af_single<V>::value) return af_log32(x);
  else return af_libm_log(x);
}
template <class V> AF V af_log1p(V x) {
  if constexpr (af_single<V>::value) return af_log1p32(x);
  else return af_libm_log1p(x);
}
template <class V> AF V af_tanh(V x) {
  if constexpr (af_single<V>::value) return af_tanh32(x);
  else return af_libm_tanh(x);
}
template <class V> AF V af_erf(V x) {
  if constexpr (af_single<V>::value) return af_erf32(x);
  else return af_libm_erf(x);
}
template <class V> AF V af_sin(V x) {
  if constexpr (af_single<V>::value) return af_sincos32<0>(x);
  else return af_libm_sin(x);
}
template <class V> AF V af_cos(V x) {
  if constexpr (af_single<V>::value) return af_sincos32<1>(x);
  else return af_libm_cos(x);
}
