extern "C" __global__ void __launch_bounds__(256) af_kernel(AF_INPUT(float, x), AF_OUTPUT(float, y)) {
  const int g = (int)blockIdx.x;
  AF_SHARED(float, scratch, 8, 0);
  {
    const int t = (int)threadIdx.x;
    AF_REGISTER(float, acc, 1);
    acc[0] = 0x0.0p+0f;
    for (int k = 0; k < 4; ++k) {
      acc[0] = acc[0] + (((k * 256) + t) < 1000 ? x[((g * 1000) + (k * 256)) + t] : 0x0.0p+0f);
    }
    const float total = af_block_reduce<256, 256>(af_sum(), acc[0], scratch);
    if (t == 0) {
      af_store(y, g, total);
    }
  }
}
