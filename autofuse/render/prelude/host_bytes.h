// Four bytes in each 32-bit integer, and their dot products: VNNI where the processor has it, exact in every form.
#pragma once

typedef int32_t af_i4 __attribute__((vector_size(16)));
typedef int16_t af_w4 __attribute__((vector_size(16)));
typedef int16_t af_w8 __attribute__((vector_size(32)));
typedef int16_t af_w16 __attribute__((vector_size(64)));

// four bytes as one integer, the first lowest
template <class V> AF af_like<V, int32_t> af_join_bytes(V a, V b, V c, V d) {
  typedef af_like<V, uint8_t> B;
  typedef af_like<V, uint32_t> U;
  const U x = af_convert<U>((B)a) | (af_convert<U>((B)b) << 8) | (af_convert<U>((B)c) << 16) | (af_convert<U>((B)d) << 24);
  return (af_like<V, int32_t>)x;
}
// the same of four bytes that lie side by side
template <class T> AF int32_t af_four_bytes(const T* p) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  return ((const af_unaligned<int32_t>*)p)->value;
#else
  return af_join_bytes<T>(p[0], p[1], p[2], p[3]);
#endif
}

// a b of 16-bit integers, neighbours added: products of a byte without and one with a sign, which never overflow here
#if defined(__AVX512BW__)
AF af_i16 af_pairs(af_i16 a, af_i16 b) { return __builtin_ia32_pmaddwd512_mask((af_w16)a, (af_w16)b, af_i16{}, (uint16_t)-1); }
#endif
#if defined(__AVX2__)
AF af_i8 af_pairs(af_i8 a, af_i8 b) { return (af_i8)__builtin_ia32_pmaddwd256((af_w8)a, (af_w8)b); }
#endif
#if defined(__SSE2__)
AF af_i4 af_pairs(af_i4 a, af_i4 b) { return (af_i4)__builtin_ia32_pmaddwd128((af_w4)a, (af_w4)b); }
#endif

template <class V, class W> AF V af_dot_pairs(V a, V b, V total) {
  const V low = a & 0x00ff00ff, high = (V)((af_like<V, uint32_t>)a >> 8) & 0x00ff00ff;
  return total + af_pairs(low, (V)((W)((W)b << 8) >> 8)) + af_pairs(high, (V)((W)b >> 8));
}

// total + the products of the bytes of a (unsigned) with those of b (signed), around 2^32
template <class V> AF V af_dot_bytes(V a, V b, V total) {
#if defined(__AVX512VNNI__)
  if constexpr (sizeof(V) == 64) {
    typedef int32_t I __attribute__((vector_size(64)));
    I t = (I)total;
    asm("vpdpbusd %2, %1, %0" : "+v"(t) : "v"((I)a), "v"((I)b));
    return (V)t;
  }
#elif defined(__AVX512BW__)
  if constexpr (sizeof(V) == 64) return (V)af_dot_pairs<af_i16, af_w16>((af_i16)a, (af_i16)b, (af_i16)total);
#endif
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  if constexpr (sizeof(V) == 32) {
    af_i8 t = (af_i8)total;
    asm("vpdpbusd %2, %1, %0" : "+v"(t) : "v"((af_i8)a), "v"((af_i8)b));
    return (V)t;
  }
#elif defined(__AVXVNNI__)
  if constexpr (sizeof(V) == 32) {
    af_i8 t = (af_i8)total;
    asm("{vex} vpdpbusd %2, %1, %0" : "+x"(t) : "x"((af_i8)a), "x"((af_i8)b));
    return (V)t;
  }
#elif defined(__AVX2__)
  if constexpr (sizeof(V) == 32) return (V)af_dot_pairs<af_i8, af_w8>((af_i8)a, (af_i8)b, (af_i8)total);
#endif
#if defined(__SSE2__)
  if constexpr (sizeof(V) == 16 && !af_shape<V>::scalar) return (V)af_dot_pairs<af_i4, af_w4>((af_i4)a, (af_i4)b, (af_i4)total);
#endif
  typedef af_like<V, uint32_t> U;
  typedef af_like<V, int32_t> I;
  U sum = (U)total;
  for (int k = 0; k < 32; k += 8) sum += (((U)a >> k) & 255) * (U)((I)((U)b << (24 - k)) >> 24);
  return (V)sum;
}
