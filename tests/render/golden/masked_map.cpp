#include "host.h"
extern "C" __attribute__((visibility("default")))
void af_kernel(void* const* args, int64_t begin, int64_t end, char* scratch) {
  const uint16_t* __restrict__ x0 = (const uint16_t*)args[0];
  float* __restrict__ y = (float*)__builtin_assume_aligned(args[1], 64);
  for (int64_t g = begin; g < end; ++g) {
    const vec<int32_t, 16> t0 = af_below<16>(((g * (-16)) + 100));
    const vec<float, 16> t1 = af_half_to_float<vec<uint16_t, 16>>(af_load_masked<uint16_t, 16>(x0 + (g * 16), af_convert<vec<int16_t, 16>>(t0), (uint16_t)0x0));
    af_store_masked<float, 16>(y + (g * 16), t0, (t1 * af_exp<vec<float, 16>>(t1)));
  }
}
