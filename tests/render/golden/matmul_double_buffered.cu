extern "C" __global__ void __launch_bounds__(64) af_kernel(AF_INPUT(float, a), AF_INPUT(float, b), AF_OUTPUT(float, c)) {
  const int g = (int)blockIdx.x;
  AF_SHARED(float, tile_a, 512, 0);
  AF_SHARED(float, tile_b, 512, 2048);
  {
    const int t = (int)threadIdx.x;
    AF_REGISTER(float, acc, 16);
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
      #pragma unroll
      for (int j = 0; j < 4; ++j) {
        acc[(i * 4) + j] = 0x0.0p+0f;
      }
    }
    #pragma unroll
    for (int ua = 0; ua < 1; ++ua) {
      af_async_copy<4, 4>(tile_a, t * 4, a, (((g / 2) * 1024) + ((t / 2) * 32)) + ((t % 2) * 4), true);
    }
    #pragma unroll
    for (int ub = 0; ub < 1; ++ub) {
      af_async_copy<4, 4>(tile_b, t * 4, b, (((t / 8) * 64) + ((g % 2) * 32)) + ((t % 8) * 4), true);
    }
    af_async_commit();
    for (int s = 0; s < 4; ++s) {
      if (s < 3) {
        #pragma unroll
        for (int ua = 0; ua < 1; ++ua) {
          af_async_copy<4, 4>(tile_a, (((s + 1) % 2) * 256) + (t * 4), a, (((((g / 2) * 1024) + ((t / 2) * 32)) + (s * 8)) + ((t % 2) * 4)) + 8, true);
        }
        #pragma unroll
        for (int ub = 0; ub < 1; ++ub) {
          af_async_copy<4, 4>(tile_b, (((s + 1) % 2) * 256) + (t * 4), b, ((((s * 512) + ((t / 8) * 64)) + ((g % 2) * 32)) + ((t % 8) * 4)) + 512, true);
        }
      }
      af_async_commit();
      af_async_wait<1>();
      __syncthreads();
      #pragma unroll
      for (int d = 0; d < 8; ++d) {
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
          #pragma unroll
          for (int j = 0; j < 4; ++j) {
            acc[(i * 4) + j] = af_fma(tile_a[((((s % 2) * 256) + ((t / 8) * 32)) + (i * 8)) + d], tile_b[((((s % 2) * 256) + (d * 32)) + ((t % 8) * 4)) + j], acc[(i * 4) + j]);
          }
        }
      }
      __syncthreads();
    }
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
      af_pack<float, 4> c_v;
      #pragma unroll
      for (int j = 0; j < 4; ++j) {
        c_v.lane[j] = acc[(i * 4) + j];
      }
      af_store_pack<4, 4>(c, (((((g / 2) * 2048) + ((t / 8) * 256)) + (i * 64)) + ((g % 2) * 32)) + ((t % 8) * 4), c_v);
    }
  }
}
