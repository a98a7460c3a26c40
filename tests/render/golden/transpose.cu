extern "C" __global__ void __launch_bounds__(256) af_kernel(AF_INPUT(float, x), AF_OUTPUT(float, y)) {
  const int g = (int)blockIdx.x;
  AF_SHARED(float, tile, 272, 0);
  {
    const int t = (int)threadIdx.x;
    af_store(tile, ((t / 16) * 17) + (t % 16), (((g / 3) * 16) + (t / 16)) < 33 ? x[((((g / 3) * 768) + ((t / 16) * 48)) + ((g % 3) * 16)) + (t % 16)] : 0x0.0p+0f);
    __syncthreads();
    if ((((g / 3) * 16) + (t % 16)) < 33) {
      af_store(y, ((((g % 3) * 528) + ((t / 16) * 33)) + ((g / 3) * 16)) + (t % 16), tile[((t % 16) * 17) + (t / 16)]);
    }
  }
}
