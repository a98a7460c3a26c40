// The entry point of an emulated kernel. It follows the kernel's text and `af_call`, which calls it with its parameters.
#pragma once

static uint64_t af_random_state;

static uint64_t af_random(uint64_t below) {
  af_random_state ^= af_random_state << 13;
  af_random_state ^= af_random_state >> 7;
  af_random_state ^= af_random_state << 17;
  return af_random_state % below;
}

// 0: forward, 1: reversed, 2: random.
template <class I>
static void af_arrange(I* order, long long count, int kind) {
  for (long long k = 0; k < count; ++k) order[k] = (I)(kind == 1 ? count - 1 - k : k);
  if (kind != 2) return;
  for (long long k = count - 1; k > 0; --k) {
    const long long j = (long long)af_random((uint64_t)k + 1);
    const I held = order[k];
    order[k] = order[j];
    order[j] = held;
  }
}

// Runs all blocks. Gives 0, or 1 with a message where the kernel broke a rule.
AF_EXPORT int af_run(void** arguments, long long blocks, unsigned int width, int threads, int shared_bytes, int kind,
                     unsigned long long seed, char* message, int message_bytes) {
  static int order[AF_MAX_THREADS];
  af_message = message;
  af_message_bytes = message_bytes;
  af_failed = af_in_fiber = false;
  af_arguments = arguments;
  af_thread = af_call;
  af_random_state = seed * 2654435769ull + 88172645463325252ull;
  blockDim.x = (unsigned int)threads;
  gridDim.x = width;
  gridDim.y = (unsigned int)((blocks + width - 1) / width);
  for (int t = 0; t < AF_MAX_THREADS; ++t) {
    af_fibers[t].copies = 0;
    af_fibers[t].groups = 0;
    af_fibers[t].exchanges = 0;
  }
  af_shared_base = (unsigned char*)aligned_alloc(64, (size_t)(shared_bytes + 64) / 64 * 64);
  af_shadows = (af_shadow*)calloc((size_t)shared_bytes + 1, sizeof(af_shadow));
  char* volatile stacks = AF_FIBERS ? (char*)malloc((size_t)threads * AF_STACK_BYTES) : 0;
  long long* volatile turns = (long long*)malloc((size_t)blocks * sizeof(long long));
  if (setjmp(af_abort) == 0) {
    af_arrange((long long*)turns, blocks, kind);
    for (long long k = 0; k < blocks; ++k) {
      const long long block = turns[k];
      ++af_epoch;
      blockIdx.x = (unsigned int)(block % width);
      blockIdx.y = (unsigned int)(block / width);
      memset(af_shared_base, 0xff, (size_t)shared_bytes);
      af_arrange(order, threads, kind);
      if (AF_FIBERS) {
        af_run_fibers(threads, order, stacks);
        continue;
      }
      for (int t = 0; t < threads; ++t) {
        threadIdx.x = (unsigned int)order[t];
        af_self = &af_fibers[order[t]];
        af_call();
        af_copy_finish();
      }
    }
  }
  free(af_shared_base);
  free(af_shadows);
  free(stacks);
  free(turns);
  return af_failed ? 1 : 0;
}
