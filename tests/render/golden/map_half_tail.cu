extern "C" __global__ void __launch_bounds__(32) af_kernel(AF_INPUT(af_half, x), AF_OUTPUT(af_half, y)) {
  const int g = (int)blockIdx.x;
  {
    const int t = (int)threadIdx.x;
    if (((g * 128) + (t * 4)) < 4100) {
      const af_pack<af_half, 4> x_v = af_load<4, 4>(x, (g * 128) + (t * 4));
      af_pack<af_half, 4> y_v;
      #pragma unroll
      for (int v = 0; v < 4; ++v) {
        y_v.lane[v] = af_to_half((float)(((float)af_to_float(x_v.lane[v])) * af_tanh((((float)af_to_float(x_v.lane[v])) + 0x1.8000000000000p+0f))));
      }
      af_store_pack<4, 4>(y, (g * 128) + (t * 4), y_v);
    }
  }
}
