// The scalar functions of autofuse.ir.functions that are cheap or work lane by lane. V is a scalar or a vector.
#pragma once

#if defined(__AVX512F__) && defined(__has_builtin)
#if __has_builtin(__builtin_ia32_maxps512_mask)
#define AF_MINMAX512 1
#endif
#endif

// ---- comparisons that keep NaN

// a > b ? a : b and a < b ? a : b in one instruction, also for the widest vectors, where compilers make a comparison and a blend of it
template <class V> AF V af_greater(V a, V b) {
#if AF_MINMAX512
  if constexpr (sizeof(V) == 64 && af_equal<af_element<V>, float>::value)
    return af_as<V>(__builtin_ia32_maxps512_mask(af_as<af_f16>(a), af_as<af_f16>(b), af_as<af_f16>(b), -1, 4));
#endif
  return a > b ? a : b;
}
template <class V> AF V af_lesser(V a, V b) {
#if AF_MINMAX512
  if constexpr (sizeof(V) == 64 && af_equal<af_element<V>, float>::value)
    return af_as<V>(__builtin_ia32_minps512_mask(af_as<af_f16>(a), af_as<af_f16>(b), af_as<af_f16>(b), -1, 4));
#endif
  return a < b ? a : b;
}

template <class V> AF V af_maximum(V a, V b) {
  const V greater = af_greater(a, b);
  if constexpr (af_kind<af_element<V>>::floating) return a != a ? a : greater;
  else return greater;
}
template <class V> AF V af_minimum(V a, V b) {
  const V lesser = af_lesser(a, b);
  if constexpr (af_kind<af_element<V>>::floating) return a != a ? a : lesser;
  else return lesser;
}
// the same where b is known not to be NaN
template <class V> AF V af_maximum_number(V a, V b) { return af_greater(b, a); }
template <class V> AF V af_minimum_number(V a, V b) { return af_lesser(b, a); }

template <class V> AF auto af_isnan(V x) { return x != x; }
template <class V> AF auto af_isinf(V x) {
  const V inf = af_splat<V>((af_element<V>)AF_INF);
  return (x == inf) | (x == -inf);
}

// ---- signs

template <class V> AF V af_sign_bit(V x) {  // +0 or -0, as a float
  typedef af_ints<V> I;
  return af_as<V>((I)(af_as<I>(x) & af_as<I>(af_splat<V>((af_element<V>)-0.0))));
}
template <class V> AF V af_copysign(V magnitude, V sign) {  // magnitude is not negative
  typedef af_ints<V> I;
  return af_as<V>((I)(af_as<I>(magnitude) | af_as<I>(af_sign_bit(sign))));
}
template <class V> AF V af_abs(V x) {
  typedef af_element<V> T;
  if constexpr (af_kind<T>::floating) {
    typedef af_ints<V> I;
    return af_as<V>((I)(af_as<I>(x) & ~af_as<I>(af_splat<V>((T)-0.0))));
  } else if constexpr (af_kind<T>::is_signed) {
    return x < af_splat<V>(0) ? (V)(-x) : x;
  } else {
    return x;
  }
}
template <class V> AF V af_sign(V x) {
  typedef af_element<V> T;
  const V zero = af_splat<V>(T(0)), one = af_splat<V>(T(1)), minus = af_splat<V>(T(-1));
  if constexpr (af_kind<T>::is_signed) return x > zero ? one : x < zero ? minus : x == zero ? zero : x;  // NaN stays
  else return x > zero ? one : zero;
}

// ---- rounding; from 2^23 (2^52) on every value is whole

template <class V> AF V af_whole(V x, V rounded) {
  const V limit = af_splat<V>((af_element<V>)(sizeof(af_element<V>) == 4 ? 0x1p23 : 0x1p52));
  return af_abs(x) < limit ? af_copysign(af_abs(rounded), x) : x;
}
template <class V> AF V af_nearest(V x) {  // ties to even
  const V magic = af_copysign(af_splat<V>((af_element<V>)(sizeof(af_element<V>) == 4 ? 0x1p23 : 0x1p52)), x);
  return (x + magic) - magic;
}
template <class V> AF V af_round(V x) {
  if constexpr (!af_kind<af_element<V>>::floating) return x;
  else return af_whole(x, af_nearest(x));
}
template <class V> AF V af_floor(V x) {
  if constexpr (!af_kind<af_element<V>>::floating) return x;
  else {
    const V r = af_nearest(x), one = af_splat<V>((af_element<V>)1);
    return af_whole(x, r > x ? r - one : r);
  }
}
template <class V> AF V af_ceil(V x) {
  if constexpr (!af_kind<af_element<V>>::floating) return x;
  else {
    const V r = af_nearest(x), one = af_splat<V>((af_element<V>)1);
    return af_whole(x, r < x ? r + one : r);
  }
}
template <class V> AF V af_trunc(V x) {
  if constexpr (!af_kind<af_element<V>>::floating) return x;
  else return af_copysign(af_floor(af_abs(x)), x);
}

// ---- integers: a divisor of 0 gives 0, and the least value over -1 wraps around

template <class T> AF T af_trunc_div1(T a, T b) {
  if constexpr (af_kind<T>::floating) return af_trunc(a / b);
  else if constexpr (af_kind<T>::is_signed) return b == 0 ? T(0) : b == T(-1) ? (T)(-a) : (T)(a / b);
  else return b == 0 ? T(0) : (T)(a / b);
}
template <class T> AF T af_trunc_mod1(T a, T b) {
  if constexpr (af_kind<T>::floating) return b == T(0) ? T(0) : (T)__builtin_fmod(a, b);
  else if constexpr (af_kind<T>::is_signed) return (b == 0 || b == T(-1)) ? T(0) : (T)(a % b);
  else return b == 0 ? T(0) : (T)(a % b);
}
template <class T> AF T af_floor_div1(T a, T b) {
  if constexpr (af_kind<T>::floating) return b == T(0) ? T(0) : af_floor(a / b);
  else {
    const T q = af_trunc_div1(a, b);
    if constexpr (af_kind<T>::is_signed) return b != 0 && b != T(-1) && a % b != 0 && ((a < 0) != (b < 0)) ? (T)(q - 1) : q;
    else return q;
  }
}
template <class T> AF T af_floor_mod1(T a, T b) {
  if constexpr (af_kind<T>::floating) {
    const T r = af_trunc_mod1(a, b);
    return r != 0 && ((r < 0) != (b < 0)) ? r + b : r;
  } else {
    const T r = af_trunc_mod1(a, b);
    if constexpr (af_kind<T>::is_signed) return r != 0 && ((r < 0) != (b < 0)) ? (T)(r + b) : r;
    else return r;
  }
}
template <class V> AF V af_trunc_div(V a, V b) { return af_each([](auto x, auto y) { return af_trunc_div1(x, y); }, a, b); }
template <class V> AF V af_trunc_mod(V a, V b) { return af_each([](auto x, auto y) { return af_trunc_mod1(x, y); }, a, b); }
template <class V> AF V af_floor_div(V a, V b) { return af_each([](auto x, auto y) { return af_floor_div1(x, y); }, a, b); }
template <class V> AF V af_floor_mod(V a, V b) { return af_each([](auto x, auto y) { return af_floor_mod1(x, y); }, a, b); }

template <class V> AF V af_shift_left(V a, V b) {
  typedef af_element<V> T;
  typedef af_like<V, T> W;
  const V most = af_splat<V>(T(sizeof(T) * 8 - 1)), zero = af_splat<V>(T(0));
  return b <= most ? (W)(a << (b <= most ? b : zero)) : zero;
}
template <class V> AF V af_shift_right(V a, V b) {
  typedef af_element<V> T;
  typedef af_like<V, T> W;
  const V most = af_splat<V>(T(sizeof(T) * 8 - 1)), zero = af_splat<V>(T(0));
  return b <= most ? (W)(a >> (b <= most ? b : zero)) : zero;
}

// ---- lane by lane through libm, in the element's own precision

#define AF_LIBM1(name, function)                                     \
  template <class V> AF V af_##name(V v) {                           \
    return af_each(                                                  \
        [](auto x) -> decltype(x) {                                  \
          if constexpr (sizeof(x) == 4) return __builtin_##function##f(x); \
          else return __builtin_##function(x);                       \
        },                                                           \
        v);                                                          \
  }
AF_LIBM1(sqrt, sqrt)
AF_LIBM1(tan, tan)
AF_LIBM1(asin, asin)
AF_LIBM1(acos, acos)
AF_LIBM1(atan, atan)
AF_LIBM1(sinh, sinh)
AF_LIBM1(cosh, cosh)
AF_LIBM1(asinh, asinh)
AF_LIBM1(acosh, acosh)
AF_LIBM1(atanh, atanh)
AF_LIBM1(libm_exp, exp)
AF_LIBM1(libm_log, log)
AF_LIBM1(libm_log1p, log1p)
AF_LIBM1(libm_sin, sin)
AF_LIBM1(libm_cos, cos)
AF_LIBM1(libm_tanh, tanh)
AF_LIBM1(libm_erf, erf)
#undef AF_LIBM1

template <class V> AF V af_fmod(V a, V b) {
  return af_each(
      [](auto x, auto y) -> decltype(x) {
        if constexpr (!af_kind<decltype(x)>::floating) return af_trunc_mod1(x, y);
        else if constexpr (sizeof(x) == 4) return __builtin_fmodf(x, y);
        else return __builtin_fmod(x, y);
      },
      a, b);
}
template <class V> AF V af_float_mod(V a, V b) {  // the sign of the divisor, as Python's
  const V r = af_fmod(a, b);
  if constexpr (!af_kind<af_element<V>>::floating) return af_floor_mod(a, b);
  else return ((r != r) | (r == 0)) ? (r == 0 ? af_copysign(af_abs(r), b) : r) : ((r < 0) != (b < 0)) ? r + b : r;
}
template <class V> AF V af_pow(V a, V b) {
  return af_each(
      [](auto x, auto y) -> decltype(x) {
        if constexpr (!af_kind<decltype(x)>::floating) return (decltype(x))__builtin_pow((double)x, (double)y);
        else if constexpr (sizeof(x) == 4) return __builtin_powf(x, y);
        else return __builtin_pow(x, y);
      },
      a, b);
}
template <class V> AF V af_fma(V a, V b, V c) { return a * b + c; }
