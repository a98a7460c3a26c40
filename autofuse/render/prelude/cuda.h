// What generated CUDA text is written against, on a GPU. It includes nothing, so that NVRTC needs no CUDA headers.
// emulation.h supplies the same names on a CPU; everything above these primitives is in cuda_functions.h for both.
#pragma once

#define AF_DEVICE __device__ __forceinline__
#define AF_INF __int_as_float(0x7f800000)
#define AF_NAN __int_as_float(0x7fffffff)

#define AF_INPUT(T, name) const T* __restrict__ name
#define AF_OUTPUT(T, name) T* __restrict__ name
// Memory through which threads of a block pass values: what is read may have been written by another one before a barrier.
#define AF_PASSED(T, name) T* name
#define AF_REGISTER(T, name, size) T name[size]
// The offset is where the buffer lies among a block's shared bytes; the compiler lays out static ones by itself.
#define AF_SHARED(T, name, size, offset) __shared__ __align__(64) T name[size]
#define AF_SHARED_DYNAMIC(T, name, size, offset)                      \
  extern __shared__ __align__(64) unsigned char af_shared_memory[];   \
  T* const name = reinterpret_cast<T*>(af_shared_memory + (offset))

AF_DEVICE float af_bits_to_float(unsigned int bits) { return __uint_as_float(bits); }
AF_DEVICE unsigned int af_float_to_bits(float x) { return __float_as_uint(x); }

AF_DEVICE float af_half_bits_to_float(unsigned short bits) {
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(bits));
  return out;
}

AF_DEVICE unsigned short af_float_to_half_bits(float x) {
  unsigned short out;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out) : "f"(x));
  return out;
}

AF_DEVICE unsigned short af_float_to_bfloat_bits(float x) {
#if __CUDA_ARCH__ >= 800
  unsigned short out;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out) : "f"(x));
  return out;
#else
  const unsigned int bits = af_float_to_bits(x);
  if (x != x) return 0x7fffu;
  return (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}

// NaN wins; one instruction where the GPU has it.
AF_DEVICE float af_max_float(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float out;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
  return out;
#else
  return (a > b || a != a) ? a : b;
#endif
}

AF_DEVICE float af_min_float(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float out;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
  return out;
#else
  return (a < b || a != a) ? a : b;
#endif
}

#include "cuda_types.h"

template <class T, class I>
AF_DEVICE void af_store(T* p, I i, typename af_same<T>::type value) {
  p[i] = value;
}

// N lanes from p[i], in pieces of W lanes that are aligned to their size.
template <int N, int W, class T, class I>
AF_DEVICE af_pack<typename af_plain<T>::type, N> af_load(T* p, I i) {
  typedef typename af_plain<T>::type E;
  af_pack<E, N> out;
#pragma unroll
  for (int k = 0; k < N; k += W) {
    const af_pack<E, W> piece = *reinterpret_cast<const af_pack<E, W>*>(p + i + k);
#pragma unroll
    for (int j = 0; j < W; ++j) out.lane[k + j] = piece.lane[j];
  }
  return out;
}

template <int N, int W, class T, class I>
AF_DEVICE void af_store_pack(T* p, I i, const af_pack<T, N>& value) {
#pragma unroll
  for (int k = 0; k < N; k += W) {
    af_pack<T, W> piece;
#pragma unroll
    for (int j = 0; j < W; ++j) piece.lane[j] = value.lane[k + j];
    *reinterpret_cast<af_pack<T, W>*>(p + i + k) = piece;
  }
}

template <int BYTES> struct af_word;
template <> struct af_word<1> { typedef unsigned char type; };
template <> struct af_word<2> { typedef unsigned short type; };
template <> struct af_word<4> { typedef unsigned int type; };
template <> struct af_word<8> { typedef uint2 type; };
template <> struct af_word<16> { typedef uint4 type; };

// Stores that make way for other data in the caches first.
template <class T>
AF_DEVICE void af_stream(T* p, const T& value) {
  typedef typename af_word<(int)sizeof(T)>::type Word;
  union Both {
    AF_DEVICE Both() {}
    T element;
    Word word;
  } both;
  both.element = value;
  __stcs(reinterpret_cast<Word*>(p), both.word);
}

template <class T, class I>
AF_DEVICE void af_store_stream(T* p, I i, typename af_same<T>::type value) {
  af_stream(p + i, value);
}

template <int N, int W, class T, class I>
AF_DEVICE void af_store_pack_stream(T* p, I i, const af_pack<T, N>& value) {
#pragma unroll
  for (int k = 0; k < N; k += W) {
    af_pack<T, W> piece;
#pragma unroll
    for (int j = 0; j < W; ++j) piece.lane[j] = value.lane[k + j];
    af_stream(reinterpret_cast<af_pack<T, W>*>(p + i + k), piece);
  }
}

// Warp shuffles of the full warp, by the width of what is exchanged.
AF_DEVICE int af_shuffle_word(int x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
AF_DEVICE float af_shuffle_word(float x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
AF_DEVICE double af_shuffle_word(double x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
AF_DEVICE long long af_shuffle_word(long long x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }

// Copies of N elements to shared memory that go on while the thread does; zeros where the guard fails. W elements (4, 8
// or 16 bytes) at a time, or W = 0: too narrow for the hardware, copied at once.
template <int N, int W, class T, class U, class I, class J>
AF_DEVICE void af_async_copy(T* target, I i, U* source, J j, bool guard) {
#if __CUDA_ARCH__ >= 800
  if constexpr (W > 0) {
    constexpr int bytes = W * (int)sizeof(T);
#pragma unroll
    for (int k = 0; k < N; k += W) {
      const unsigned int to = (unsigned int)__cvta_generic_to_shared(target + i + k);
      const void* from = guard ? (const void*)(source + j + k) : (const void*)source;
      const int taken = guard ? bytes : 0;
      if constexpr (bytes == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(taken) : "memory");
      } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(bytes), "r"(taken)
                     : "memory");
      }
    }
    return;
  }
#endif
  for (int k = 0; k < N; ++k) target[i + k] = guard ? source[j + k] : T(0);
}

AF_DEVICE void af_async_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int PENDING>
AF_DEVICE void af_async_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

#include "cuda_functions.h"
