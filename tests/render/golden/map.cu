extern "C" __global__ void __launch_bounds__(32) af_kernel(AF_INPUT(float, x), AF_OUTPUT(float, y)) {
  const int g = (int)blockIdx.x;
  {
    const int t = (int)threadIdx.x;
    const af_pack<float, 4> x_v = af_load<4, 4>(x, (g * 128) + (t * 4));
    af_pack<float, 4> y_v;
    #pragma unroll
    for (int v = 0; v < 4; ++v) {
      y_v.lane[v] = x_v.lane[v] * af_tanh((x_v.lane[v] + 0x1.8000000000000p+0f));
    }
    af_store_pack<4, 4>(y, (g * 128) + (t * 4), y_v);
  }
}
