#include "host.h"
extern "C" __attribute__((visibility("default")))
void af_kernel(void* const* args, int64_t begin, int64_t end, char* scratch) {
  const float* __restrict__ a = (const float*)args[0];
  const float* __restrict__ b = (const float*)args[1];
  float* __restrict__ c = (float*)__builtin_assume_aligned(args[2], 64);
  for (int64_t g = begin; g < end; ++g) {
    vec<float, 16> acc_0, acc_1, acc_2, acc_3, acc_4, acc_5, acc_6, acc_7;
    acc_0 = af_splat<vec<float, 16>>(0x0.0p+0f);
    acc_1 = af_splat<vec<float, 16>>(0x0.0p+0f);
    acc_2 = af_splat<vec<float, 16>>(0x0.0p+0f);
    acc_3 = af_splat<vec<float, 16>>(0x0.0p+0f);
    acc_4 = af_splat<vec<float, 16>>(0x0.0p+0f);
    acc_5 = af_splat<vec<float, 16>>(0x0.0p+0f);
    acc_6 = af_splat<vec<float, 16>>(0x0.0p+0f);
    acc_7 = af_splat<vec<float, 16>>(0x0.0p+0f);
    for (int64_t p_1 = 0; p_1 < 64; ++p_1) {
      const int64_t t0 = ((g * 256) + p_1);
      const float t1 = a[t0];
      const vec<float, 16> t2 = af_load<float, 16>(b + (p_1 * 32));
      acc_0 = (acc_0 + (af_splat<vec<float, 16>>(t1) * t2));
      const vec<float, 16> t3 = af_load<float, 16>(b + ((p_1 * 32) + 16));
      acc_1 = (acc_1 + (af_splat<vec<float, 16>>(t1) * t3));
      const float t4 = a[(t0 + 64)];
      acc_2 = (acc_2 + (af_splat<vec<float, 16>>(t4) * t2));
      acc_3 = (acc_3 + (af_splat<vec<float, 16>>(t4) * t3));
      const float t5 = a[(t0 + 128)];
      acc_4 = (acc_4 + (af_splat<vec<float, 16>>(t5) * t2));
      acc_5 = (acc_5 + (af_splat<vec<float, 16>>(t5) * t3));
      const float t6 = a[((af_minimum<int64_t>(((g * 4) + 3), 6) * 64) + p_1)];
      acc_6 = (acc_6 + (af_splat<vec<float, 16>>(t6) * t2));
      acc_7 = (acc_7 + (af_splat<vec<float, 16>>(t6) * t3));
    }
    af_store<float, 16>(c + (g * 128), acc_0);
    af_store<float, 16>(c + ((g * 128) + 16), acc_1);
    af_store<float, 16>(c + ((g * 128) + 32), acc_2);
    af_store<float, 16>(c + ((g * 128) + 48), acc_3);
    af_store<float, 16>(c + ((g * 128) + 64), acc_4);
    af_store<float, 16>(c + ((g * 128) + 80), acc_5);
    const bool t7 = (((g * 4) + 3) < 7);
    if (t7) { af_store<float, 16>(c + ((g * 128) + 96), acc_6); }
    if (t7) { af_store<float, 16>(c + ((g * 128) + 112), acc_7); }
  }
}
