// Vectors for host kernels: compiler vector extensions, loads, stores, masks and reductions. No standard library.
// A mask is a vector of signed integers, -1 for true and 0 for false. Half types are kept as their 16 bits.
#pragma once
#include <stdint.h>

#define AF static inline __attribute__((always_inline))
#define AF_NAN __builtin_nanf("")
#define AF_INF __builtin_inff()

template <class T, int N> struct af_vector {
  typedef T type __attribute__((vector_size(N * sizeof(T))));
};
template <class T, int N> using vec = typename af_vector<T, N>::type;

// ---- what a type is: a scalar, or a vector of `lanes` elements

template <class T> struct af_plain { typedef T type; };
template <class T> struct af_plain<T&> { typedef T type; };
template <class T> struct af_plain<const T> { typedef T type; };
template <class T> struct af_plain<const T&> { typedef T type; };

template <class V> struct af_shape {
  typedef typename af_plain<decltype((*(V*)nullptr)[0])>::type element;
  static constexpr int lanes = sizeof(V) / sizeof(element);
  static constexpr bool scalar = false;
};
#define AF_SCALAR(T)                    \
  template <> struct af_shape<T> {      \
    typedef T element;                  \
    static constexpr int lanes = 1;     \
    static constexpr bool scalar = true; \
  };
AF_SCALAR(bool)
AF_SCALAR(float)
AF_SCALAR(double)
AF_SCALAR(int8_t)
AF_SCALAR(int16_t)
AF_SCALAR(int32_t)
AF_SCALAR(int64_t)
AF_SCALAR(uint8_t)
AF_SCALAR(uint16_t)
AF_SCALAR(uint32_t)
AF_SCALAR(uint64_t)
template <class V> using af_element = typename af_shape<V>::element;

template <class A, class B> struct af_equal { static constexpr bool value = false; };
template <class A> struct af_equal<A, A> { static constexpr bool value = true; };
template <class T> struct af_kind {
  static constexpr bool floating = af_equal<T, float>::value || af_equal<T, double>::value;
  static constexpr bool is_signed = floating || T(-1) < T(0);
};

// the vector or scalar type with as many lanes as V, of elements T
template <class V, class T, bool scalar = af_shape<V>::scalar> struct af_like_type { typedef vec<T, af_shape<V>::lanes> type; };
template <class V, class T> struct af_like_type<V, T, true> { typedef T type; };
template <class V, class T> using af_like = typename af_like_type<V, T>::type;

template <int bytes> struct af_bits_type;
template <> struct af_bits_type<1> { typedef int8_t type; };
template <> struct af_bits_type<2> { typedef int16_t type; };
template <> struct af_bits_type<4> { typedef int32_t type; };
template <> struct af_bits_type<8> { typedef int64_t type; };
template <class V> using af_ints = af_like<V, typename af_bits_type<sizeof(af_element<V>)>::type>;

// ---- making and converting values

template <class To, class From> AF To af_as(From x) {
  static_assert(sizeof(To) == sizeof(From), "af_as keeps the size");
  To r;
  __builtin_memcpy(&r, &x, sizeof r);
  return r;
}

// c - 0 is c for every c, negative zero and NaN too; compilers turn it into one broadcast
template <class V> AF V af_splat(af_element<V> c) {
  if constexpr (af_shape<V>::scalar) return c;
  else return c - V{};
}

template <class To, class From> AF To af_convert(From x) {
  if constexpr (af_equal<To, From>::value) return x;
  else if constexpr (af_shape<To>::scalar) return (To)x;
  else return __builtin_convertvector(x, To);
}

// element l is g(l)
template <class V, class G> AF V af_lanes(G g) {
  alignas(64) af_element<V> r[af_shape<V>::lanes];
  for (int l = 0; l < af_shape<V>::lanes; ++l) r[l] = g((int64_t)l);
  V v;
  __builtin_memcpy(&v, r, sizeof v);
  return v;
}

template <class V> AF V af_iota() {
  return af_lanes<V>([](int64_t l) { return (af_element<V>)l; });
}

// a mask of 32-bit lanes that is true in lanes below `count`, which may be anything
template <int N> AF vec<int32_t, N> af_below(int64_t count) {
  const int32_t c = count < 0 ? 0 : count > N ? N : (int32_t)count;
  return af_iota<vec<int32_t, N>>() < af_splat<vec<int32_t, N>>(c);
}

// f of every lane, for functions that have no vector form
template <class V, class G> AF V af_each(G g, V x) {
  if constexpr (af_shape<V>::scalar) return g(x);
  else return af_lanes<V>([&](int64_t l) { return g(x[l]); });
}
template <class V, class G> AF V af_each(G g, V x, V y) {
  if constexpr (af_shape<V>::scalar) return g(x, y);
  else return af_lanes<V>([&](int64_t l) { return g(x[l], y[l]); });
}

// ---- halves and reductions

template <class V> struct af_halves { vec<af_element<V>, af_shape<V>::lanes / 2> low, high; };

template <class V, class G> AF af_element<V> af_fold(V v, G g) {
  constexpr int n = af_shape<V>::lanes;
  if constexpr (n == 1) return v[0];
  else if constexpr (n == 2) return g((af_element<V>)v[0], (af_element<V>)v[1]);
  else {
    const af_halves<V> h = af_as<af_halves<V>>(v);
    return af_fold(g(h.low, h.high), g);
  }
}

template <class M> AF bool af_any(M m) {
  if constexpr (af_shape<M>::scalar) return m != 0;
  else return af_fold(m, [](auto a, auto b) { return (decltype(a))(a | b); }) != 0;
}
template <class M> AF bool af_all(M m) {
  if constexpr (af_shape<M>::scalar) return m != 0;
  else return af_fold(m, [](auto a, auto b) { return (decltype(a))(a & b); }) != 0;
}

// ---- memory: addresses are aligned to the element only, but for streams

template <class V> struct __attribute__((packed, may_alias)) af_unaligned { V value; };

template <class T, int N> AF vec<T, N> af_load(const T* p) {
  return ((const af_unaligned<vec<T, N>>*)p)->value;
}
template <class T, int N> AF void af_store(T* p, vec<T, N> v) {
  ((af_unaligned<vec<T, N>>*)p)->value = v;
}

// elements 0, 2, 4, ... of p: two overlapping loads that touch nothing past the last of them
template <int... K> struct af_indices {};
template <int N, int... K> struct af_count : af_count<N - 1, N - 1, K...> {};
template <int... K> struct af_count<0, K...> { typedef af_indices<K...> type; };
template <class T, int N, int... K> AF vec<T, N> af_pick_even(const T* p, af_indices<K...>) {
#if defined(__clang__) || __GNUC__ >= 12
  return __builtin_shufflevector(af_load<T, N>(p), af_load<T, N>(p + N - 1), 2 * K + (2 * K >= N)...);
#else
  return af_lanes<vec<T, N>>([&](int64_t l) { return p[2 * l]; });
#endif
}
template <class T, int N> AF vec<T, N> af_load_even(const T* p) {
  return af_pick_even<T, N>(p, typename af_count<N>::type());
}

// rows and columns of a square tile change places, a vector a row: blocks of S x S off the diagonal are exchanged, for S = 1, 2, 4, ...
template <int S, class V, int... K> AF void af_exchange(V& a, V& b, af_indices<K...>) {
  constexpr int n = sizeof...(K);
#if defined(__clang__) || __GNUC__ >= 12
  const V x = __builtin_shufflevector(a, b, ((K & S) ? n + K - S : K)...);
  const V y = __builtin_shufflevector(a, b, ((K & S) ? n + K : K + S)...);
#else
  const V x = af_lanes<V>([&](int64_t l) { return (l & S) ? b[l - S] : a[l]; });
  const V y = af_lanes<V>([&](int64_t l) { return (l & S) ? b[l] : a[l + S]; });
#endif
  a = x;
  b = y;
}
template <int S, class V, int N> AF void af_exchange_blocks(V (&r)[N]) {
#pragma GCC unroll 64
  for (int i = 0; i < N; ++i)
    if (!(i & S)) af_exchange<S>(r[i], r[i + S], typename af_count<N>::type());
  if constexpr (2 * S < N) af_exchange_blocks<2 * S>(r);
}
template <class V, class... R> AF void af_transpose(V& first, R&... rest) {
  constexpr int n = 1 + sizeof...(R);
  static_assert(n == af_shape<V>::lanes, "a tile is square");
  V r[n] = {first, rest...};
  af_exchange_blocks<1>(r);
  int k = 0;
  first = r[k++];
  ((rest = r[k++]), ...);
}

typedef float af_f16 __attribute__((vector_size(64)));
typedef float af_f8 __attribute__((vector_size(32)));
typedef float af_f4 __attribute__((vector_size(16)));
typedef int32_t af_i16 __attribute__((vector_size(64)));
typedef int32_t af_i8 __attribute__((vector_size(32)));

// past the caches, to an address aligned to the vector; af_stream_end makes the stores visible in order
template <class T, int N> AF void af_stream(T* p, vec<T, N> v) {
#if defined(__clang__)
  __builtin_nontemporal_store(v, (vec<T, N>*)p);
#elif defined(__x86_64__)
#if defined(__AVX512F__)
  if constexpr (sizeof v == 64) { __builtin_ia32_movntps512((float*)p, af_as<af_f16>(v)); return; }
#endif
#if defined(__AVX__)
  if constexpr (sizeof v == 32) { __builtin_ia32_movntps256((float*)p, af_as<af_f8>(v)); return; }
#endif
  if constexpr (sizeof v == 16) __builtin_ia32_movntps((float*)p, af_as<af_f4>(v));
  else af_store<T, N>(p, v);
#else
  af_store<T, N>(p, v);
#endif
}
AF void af_stream_end() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
}

// lanes whose mask is 0 do not touch memory; the mask has lanes as wide as T
template <class T, int N, class M> AF vec<T, N> af_load_masked(const T* p, M m, T fill) {
  const vec<T, N> other = af_splat<vec<T, N>>(fill);
#if defined(__AVX512F__) && defined(__AVX512DQ__)
  if constexpr (sizeof(T) == 4 && N == 16) {
    return af_as<vec<T, N>>(__builtin_ia32_loadups512_mask((const float*)p, af_as<af_f16>(other),
                                                           __builtin_ia32_cvtd2mask512(af_as<af_i16>(m))));
  }
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(T) == 4 && N == 8) {
    const vec<T, N> got = af_as<vec<T, N>>(__builtin_ia32_maskloadps256((const af_f8*)p, af_as<af_i8>(m)));
    return m ? got : other;
  }
#endif
  if (af_all(m)) return af_load<T, N>(p);
  return af_lanes<vec<T, N>>([&](int64_t l) { return m[l] ? p[l] : fill; });
}
// one element for all lanes whose mask holds; it is read only where there is such a lane
template <class T, int N, class M> AF vec<T, N> af_load_shared(const T* p, M m, T fill) {
  const vec<T, N> other = af_splat<vec<T, N>>(fill);
  return m ? af_splat<vec<T, N>>(af_any(m) ? *p : fill) : other;
}
template <class T, int N, class M> AF void af_store_masked(T* p, M m, vec<T, N> v) {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
  if constexpr (sizeof(T) == 4 && N == 16) {
    __builtin_ia32_storeups512_mask((float*)p, af_as<af_f16>(v), __builtin_ia32_cvtd2mask512(af_as<af_i16>(m)));
    return;
  }
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(T) == 4 && N == 8) {
    __builtin_ia32_maskstoreps256((af_f8*)p, af_as<af_i8>(m), af_as<af_f8>(v));
    return;
  }
#endif
  if (af_all(m)) {
    af_store<T, N>(p, v);
    return;
  }
  for (int l = 0; l < N; ++l)
    if (m[l]) p[l] = v[l];
}

#include "host_bytes.h"
#include "host_half.h"
#include "host_narrow.h"
#include "host_math.h"
#include "host_float.h"
