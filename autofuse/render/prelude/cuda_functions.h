// The functions of autofuse.ir.functions for generated CUDA text, and reductions across threads. They are written on
// the primitives that cuda.h and emulation.h both supply, so that emulation runs the very same lines.
#pragma once

// Functions of one floating-point argument. Half types compute in float, integers in double.
#define AF_MATH(name, single_name, double_name)                                                                    \
  template <class T>                                                                                            \
  AF_DEVICE T af_##name(T x) {                                                                                  \
    if constexpr (af_equal<T, float>::value) {                                                                  \
      return single_name(x);                                                                                    \
    } else if constexpr (af_is_half<T>::value) {                                                                \
      return T(single_name(af_to_float(x)));                                                                    \
    } else {                                                                                                    \
      return (T)double_name((double)x);                                                                         \
    }                                                                                                           \
  }

AF_MATH(sqrt, sqrtf, sqrt)
AF_MATH(exp, expf, exp)
AF_MATH(log, logf, log)
AF_MATH(log1p, log1pf, log1p)
AF_MATH(sin, sinf, sin)
AF_MATH(cos, cosf, cos)
AF_MATH(tan, tanf, tan)
AF_MATH(asin, asinf, asin)
AF_MATH(acos, acosf, acos)
AF_MATH(atan, atanf, atan)
AF_MATH(sinh, sinhf, sinh)
AF_MATH(cosh, coshf, cosh)
AF_MATH(tanh, tanhf, tanh)
AF_MATH(asinh, asinhf, asinh)
AF_MATH(acosh, acoshf, acosh)
AF_MATH(atanh, atanhf, atanh)
AF_MATH(erf, erff, erf)
#undef AF_MATH

// Rounding leaves integers alone (a double would not hold all of a long long).
#define AF_ROUNDING(name, single_name, double_name)                                                                \
  template <class T>                                                                                            \
  AF_DEVICE T af_##name(T x) {                                                                                  \
    if constexpr (af_equal<T, float>::value) {                                                                  \
      return single_name(x);                                                                                    \
    } else if constexpr (af_equal<T, double>::value) {                                                          \
      return double_name(x);                                                                                    \
    } else if constexpr (af_is_half<T>::value) {                                                                \
      return T(single_name(af_to_float(x)));                                                                    \
    } else {                                                                                                    \
      return x;                                                                                                 \
    }                                                                                                           \
  }

AF_ROUNDING(floor, floorf, floor)
AF_ROUNDING(ceil, ceilf, ceil)
AF_ROUNDING(round, rintf, rint)  // half to even
AF_ROUNDING(trunc, truncf, trunc)
AF_ROUNDING(abs_float, fabsf, fabs)
#undef AF_ROUNDING

template <class T>
AF_DEVICE T af_abs(T x) {
  if constexpr (af_is_float<T>::value) {
    return af_abs_float(x);
  } else {
    return x < T(0) ? T(T(0) - x) : x;
  }
}

template <class T>
AF_DEVICE bool af_isnan(T x) {
  return x != x;
}

template <class T>
AF_DEVICE bool af_isinf(T x) {
  if constexpr (af_is_half<T>::value) {
    return af_isinf(af_to_float(x));
  } else if constexpr (af_is_float<T>::value) {
    return x == (T)AF_INF || x == -(T)AF_INF;
  } else {
    return false;
  }
}

template <class T>
AF_DEVICE T af_sign(T x) {
  if constexpr (af_is_half<T>::value) {
    return T(af_sign(af_to_float(x)));
  } else {
    return x != x ? x : (T)((x > T(0)) - (x < T(0)));
  }
}

// NaN wins in both.
template <class A, class B>
AF_DEVICE typename af_both<A, B>::type af_maximum(A left, B right) {
  typedef typename af_both<A, B>::type T;
  const T a = (T)left, b = (T)right;
  if constexpr (af_equal<T, float>::value) {
    return af_max_float(a, b);
  } else {
    return (a > b || a != a) ? a : b;
  }
}

template <class A, class B>
AF_DEVICE typename af_both<A, B>::type af_minimum(A left, B right) {
  typedef typename af_both<A, B>::type T;
  const T a = (T)left, b = (T)right;
  if constexpr (af_equal<T, float>::value) {
    return af_min_float(a, b);
  } else {
    return (a < b || a != a) ? a : b;
  }
}

template <class A, class B, class C>
AF_DEVICE typename af_both<A, B>::type af_fma(A a, B b, C c) {
  typedef typename af_both<A, B>::type T;
  if constexpr (af_equal<T, float>::value) {
    return fmaf((float)a, (float)b, (float)c);
  } else if constexpr (af_equal<T, double>::value) {
    return fma((double)a, (double)b, (double)c);
  } else if constexpr (af_is_half<T>::value) {
    return T(fmaf(af_to_float(a), af_to_float(b), af_to_float(c)));
  } else {
    return (T)(a * b + c);
  }
}

// Integer division is total: by zero it gives 0, and the least integer by -1 wraps around.
template <class A, class B>
AF_DEVICE typename af_both<A, B>::type af_trunc_div(A left, B right) {
  typedef typename af_both<A, B>::type T;
  const T a = (T)left, b = (T)right;
  if (b == T(0)) return T(0);
  if (T(-1) < T(0) && b == T(-1)) return (T)(0ULL - (unsigned long long)a);
  return (T)(a / b);
}

template <class A, class B>
AF_DEVICE typename af_both<A, B>::type af_trunc_mod(A left, B right) {
  typedef typename af_both<A, B>::type T;
  const T a = (T)left, b = (T)right;
  if (b == T(0) || (T(-1) < T(0) && b == T(-1))) return T(0);
  return (T)(a % b);
}

template <class A, class B>
AF_DEVICE typename af_both<A, B>::type af_floor_mod(A left, B right) {
  typedef typename af_both<A, B>::type T;
  const T r = af_trunc_mod(left, right), b = (T)right;
  return (r != T(0) && ((r < T(0)) != (b < T(0)))) ? (T)(r + b) : r;
}

template <class A, class B>
AF_DEVICE typename af_both<A, B>::type af_floor_div(A left, B right) {
  typedef typename af_both<A, B>::type T;
  const T a = (T)left, b = (T)right;
  const T q = af_trunc_div(a, b), r = af_trunc_mod(a, b);
  return (r != T(0) && ((r < T(0)) != (b < T(0)))) ? (T)(q - T(1)) : q;
}

template <class A, class B>
AF_DEVICE typename af_both<A, B>::type af_div(A a, B b) {
  return af_trunc_div(a, b);
}

// The remainder with the sign of the dividend.
template <class A, class B>
AF_DEVICE typename af_both<A, B>::type af_fmod(A left, B right) {
  typedef typename af_both<A, B>::type T;
  if constexpr (af_is_half<T>::value) {
    return T(fmodf(af_to_float(left), af_to_float(right)));
  } else if constexpr (af_equal<T, float>::value) {
    return fmodf((float)left, (float)right);
  } else if constexpr (af_equal<T, double>::value) {
    return fmod((double)left, (double)right);
  } else {
    return af_trunc_mod(left, right);
  }
}

// The remainder with the sign of the divisor, zero included.
template <class T>
AF_DEVICE T af_float_mod(T a, T b) {
  if constexpr (af_is_half<T>::value) {
    return T(af_float_mod(af_to_float(a), af_to_float(b)));
  } else if constexpr (af_is_float<T>::value) {
    const T r = af_fmod(a, b);
    if (r == T(0)) return (T)copysign((double)0, (double)b);
    return ((r < T(0)) != (b < T(0))) ? r + b : r;
  } else {
    return af_floor_mod(a, b);
  }
}

template <class A, class B>
AF_DEVICE A af_pow(A a, B b) {
  if constexpr (af_is_half<A>::value) {
    return A(af_pow(af_to_float(a), b));
  } else if constexpr (af_is_half<B>::value) {
    return af_pow(a, af_to_float(b));
  } else if constexpr (af_equal<A, float>::value) {
    return powf(a, (float)b);
  } else {
    return (A)pow((double)a, (double)b);
  }
}

// Shifting by the width or more gives 0.
template <class A, class B>
AF_DEVICE A af_shift_left(A a, B b) {
  return (unsigned long long)b < sizeof(A) * 8 ? (A)((unsigned long long)a << (int)b) : A(0);
}

template <class A, class B>
AF_DEVICE A af_shift_right(A a, B b) {
  return (unsigned long long)b < sizeof(A) * 8 ? (A)(a >> (int)b) : A(0);
}

struct af_sum {
  template <class T>
  AF_DEVICE T operator()(T a, T b) const {
    return (T)(a + b);
  }
};
struct af_prod {
  template <class T>
  AF_DEVICE T operator()(T a, T b) const {
    return (T)(a * b);
  }
};
struct af_max {
  template <class T>
  AF_DEVICE T operator()(T a, T b) const {
    return af_maximum(a, b);
  }
};
struct af_min {
  template <class T>
  AF_DEVICE T operator()(T a, T b) const {
    return af_minimum(a, b);
  }
};

template <class T>
AF_DEVICE T af_shuffle_xor(T x, int lanes) {
  if constexpr (af_equal<T, af_half>::value || af_equal<T, af_bfloat>::value) {
    T out;
    out.bits = (unsigned short)af_shuffle_word((int)x.bits, lanes);
    return out;
  } else if constexpr (af_is_float<T>::value) {
    return af_shuffle_word(x, lanes);
  } else if constexpr (sizeof(T) == 8) {
    return (T)af_shuffle_word((long long)x, lanes);
  } else {
    return (T)af_shuffle_word((int)x, lanes);
  }
}

// Over groups of WIDTH neighbouring lanes (a power of two); every lane gets its group's result. Partners add the same two
// numbers, so all lanes agree to the bit.
template <int WIDTH, class Op, class T>
AF_DEVICE T af_warp_reduce(Op op, T x) {
#pragma unroll
  for (int lanes = WIDTH / 2; lanes > 0; lanes /= 2) x = op(x, af_shuffle_xor(x, lanes));
  return x;
}

// Over the first COUNT lanes, which are all that the warp has; lane 0 gets the result.
template <int COUNT, class Op, class T>
AF_DEVICE T af_tail_reduce(Op op, T x) {
  const int lane = (int)threadIdx.x % 32;
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const T other = af_shuffle_xor(x, lanes);
    if ((lane ^ lanes) < COUNT) x = op(x, other);
  }
  return x;
}

// Over groups of THREADS neighbouring threads of a block of BLOCK; every thread gets its group's result. All threads of the
// block come here. It waits before the scratch (an element a warp) is written as well as before it is read, so the scratch
// may have been in use for something else, and what was stored in shared memory before is seen after.
template <int THREADS, int BLOCK, class Op, class T, class S>
AF_DEVICE T af_block_reduce(Op op, T x, S scratch) {
  constexpr int warps = (THREADS + 31) / 32;
  const int warp = (int)threadIdx.x / 32;
  if constexpr (THREADS % 32 == 0 && warps > 1) {
    const int first = THREADS == BLOCK ? 0 : warp / warps * warps;
    x = af_warp_reduce<32>(op, x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) af_store(scratch, warp, x);
    __syncthreads();
    if constexpr (warps > 4 && (warps & (warps - 1)) == 0) {
      return af_warp_reduce<warps>(op, (T)scratch[first + (int)threadIdx.x % warps]);
    } else {
      T out = (T)scratch[first];
#pragma unroll
      for (int w = 1; w < warps; ++w) out = op(out, (T)scratch[first + w]);
      return out;
    }
  } else {
    // the block's one last warp is partly filled
    static_assert(THREADS == BLOCK, "groups must be whole warps, or lie within one");
    x = warp < THREADS / 32 ? af_warp_reduce<32>(op, x) : af_tail_reduce<THREADS % 32>(op, x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) af_store(scratch, warp, x);
    __syncthreads();
    T out = (T)scratch[0];
#pragma unroll
    for (int w = 1; w < warps; ++w) out = op(out, (T)scratch[w]);
    return out;
  }
}
