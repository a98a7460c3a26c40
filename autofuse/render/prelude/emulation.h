// Runs generated CUDA text on a CPU and checks it: the primitives of cuda.h with their warp-wide and block-wide meaning.
//
// A block's threads are fibers that switch at barriers and shuffles (without either they run one after another). Shared and
// register memory starts poisoned. Every shared access is checked against those of other threads since the last barrier
// that orders them, and every access against the bounds of its buffer. The first fault ends the launch with a message.
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AF_DEVICE inline
#define AF_INF __builtin_inff()
#define AF_NAN __builtin_nanf("")
#define AF_EXPORT extern "C" __attribute__((visibility("default")))
#define __global__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __syncthreads() af_sync_block(__LINE__)
#define __syncwarp() af_sync_warp(__LINE__)

struct af_dim {
  unsigned int x, y, z;
};
static af_dim threadIdx, blockIdx, blockDim, gridDim;

#include "emulation_fibers.h"
#include "emulation_memory.h"

AF_DEVICE float af_bits_to_float(unsigned int bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

AF_DEVICE unsigned int af_float_to_bits(float x) {
  unsigned int bits;
  memcpy(&bits, &x, 4);
  return bits;
}

AF_DEVICE float af_half_bits_to_float(unsigned short bits) {
  const unsigned int sign = (unsigned int)(bits & 0x8000u) << 16, mantissa = bits & 0x3ffu;
  const int exponent = (bits >> 10) & 31;
  if (exponent == 31) return af_bits_to_float(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) return (sign ? -1.0f : 1.0f) * (float)mantissa * 0x1p-24f;
  return af_bits_to_float(sign | ((unsigned int)(exponent + 112) << 23) | (mantissa << 13));
}

// To nearest, ties to even, as the GPU's conversion does.
AF_DEVICE unsigned short af_float_to_half_bits(float x) {
  const unsigned int bits = af_float_to_bits(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fffu;
  if (magnitude >= 0x477ff000u) return (unsigned short)(sign | 0x7c00u);  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {
    // below the least normal number the result counts multiples of 2^-24
    return (unsigned short)(sign | (unsigned int)nearbyintf(fabsf(x) * 0x1p24f));
  }
  const unsigned int rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return (unsigned short)(sign | ((rounded - 0x38000000u) >> 13));
}

AF_DEVICE unsigned short af_float_to_bfloat_bits(float x) {
  const unsigned int bits = af_float_to_bits(x);
  if (x != x) return 0x7fffu;
  return (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

AF_DEVICE float af_max_float(float a, float b) { return (a > b || a != a) ? a : b; }
AF_DEVICE float af_min_float(float a, float b) { return (a < b || a != a) ? a : b; }

#include "cuda_types.h"

template <class P, class I>
AF_DEVICE void af_store(const P& p, I i, typename P::element value) {
  p.write(i, value);
}

template <class P, class I>
AF_DEVICE void af_store_stream(const P& p, I i, typename P::element value) {
  p.write(i, value);
}

template <int N, int W, class P, class I>
AF_DEVICE af_pack<typename P::element, N> af_load(const P& p, I i) {
  af_pack<typename P::element, N> out;
  for (int k = 0; k < N; ++k) {
    if (k % W == 0) p.check_alignment(i + k, W);
    out.lane[k] = p[i + k];
  }
  return out;
}

template <int N, int W, class P, class I>
AF_DEVICE void af_store_pack(const P& p, I i, const af_pack<typename P::element, N>& value) {
  for (int k = 0; k < N; ++k) {
    if (k % W == 0) p.check_alignment(i + k, W);
    p.write(i + k, value.lane[k]);
  }
}

template <int N, int W, class P, class I>
AF_DEVICE void af_store_pack_stream(const P& p, I i, const af_pack<typename P::element, N>& value) {
  af_store_pack<N, W>(p, i, value);
}

// An exchange is a warp-wide meeting; two slots a lane suffice, as no lane can be two meetings ahead of another.
template <class T>
AF_DEVICE T af_exchange(T x, int lanes) {
  static uint64_t slots[2][1024];
  const unsigned int slot = af_self->exchanges++ & 1u, me = threadIdx.x, other = me ^ (unsigned int)lanes;
  memcpy(&slots[slot][me], &x, sizeof x);
  af_meet(AF_AT_SHUFFLE, lanes);
  if (other >= blockDim.x) return x;
  T out;
  memcpy(&out, &slots[slot][other], sizeof out);
  return out;
}

AF_DEVICE int af_shuffle_word(int x, int lanes) { return af_exchange(x, lanes); }
AF_DEVICE float af_shuffle_word(float x, int lanes) { return af_exchange(x, lanes); }
AF_DEVICE double af_shuffle_word(double x, int lanes) { return af_exchange(x, lanes); }
AF_DEVICE long long af_shuffle_word(long long x, int lanes) { return af_exchange(x, lanes); }

template <int N, int W, class P, class Q, class I, class J>
AF_DEVICE void af_async_copy(const P& target, I i, const Q& source, J j, bool guard) {
  typedef typename P::element T;
  if (W > 0 && guard) source.check_alignment(j, W);
  if (W > 0) target.check_alignment(i, W);
  for (int k = 0; k < N; ++k) {
    T value;
    memset((void*)&value, 0, sizeof value);
    if (guard) value = source[j + k];
    if (W > 0) {
      af_copy_begin(target.write_later(i + k), &value, (int)sizeof value);
    } else {
      target.write(i + k, value);
    }
  }
}

AF_DEVICE void af_async_commit() { af_copy_commit(); }

template <int PENDING>
AF_DEVICE void af_async_wait() {
  af_copy_wait(PENDING);
}

#include "cuda_functions.h"
