// Threads of a block as fibers, their meetings, and the end of a launch that went wrong.
#pragma once

enum { AF_MAX_THREADS = 1024, AF_STACK_BYTES = 1 << 17 };
enum af_state { AF_RUNNING, AF_AT_BLOCK, AF_AT_WARP, AF_AT_SHUFFLE, AF_DONE };

struct af_copy;

struct af_fiber {
  void* stack_pointer;
  af_state state;
  int site;  // the line of the barrier, or the distance of the shuffle
  unsigned int exchanges;
  unsigned int groups;  // of asynchronous copies, committed so far
  af_copy *copies, *last_copy;
};

static af_fiber af_fibers[AF_MAX_THREADS];
static af_fiber* af_self = af_fibers;
static unsigned int af_epoch = 0;                  // counts barriers of the block, and blocks
static unsigned int af_warp_epoch[AF_MAX_THREADS / 32];  // counts barriers of each warp
static char* af_message;
static int af_message_bytes;
static bool af_failed;
static bool af_in_fiber;
static jmp_buf af_abort;
static void* af_scheduler;
static void (*af_thread)();

#if defined(__x86_64__) && !defined(AF_PORTABLE_FIBERS)
// Saves what a call must keep, and goes on where the other stack left off. No system call, unlike swapcontext.
__asm__(
    ".text\n"
    ".type af_switch_stacks,@function\n"
    "af_switch_stacks:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n"
    ".size af_switch_stacks,.-af_switch_stacks\n");
extern "C" __attribute__((visibility("hidden"))) void af_switch_stacks(void** save, void* next);

static void af_prepare(af_fiber* f, char* stack, void (*entry)()) {
  void** top = (void**)(stack + AF_STACK_BYTES - 64);
  *--top = 0;  // the entry's return address: it never returns
  *--top = (void*)entry;
  for (int k = 0; k < 6; ++k) *--top = 0;
  f->stack_pointer = top;
}
static inline void af_to_scheduler() { af_switch_stacks(&af_self->stack_pointer, af_scheduler); }
static inline void af_to_fiber() { af_switch_stacks(&af_scheduler, af_self->stack_pointer); }
#else
#include <ucontext.h>
static ucontext_t af_contexts[AF_MAX_THREADS], af_main_context;
static void af_prepare(af_fiber* f, char* stack, void (*entry)()) {
  ucontext_t* c = &af_contexts[f - af_fibers];
  getcontext(c);
  c->uc_stack.ss_sp = stack;
  c->uc_stack.ss_size = AF_STACK_BYTES;
  c->uc_link = 0;
  makecontext(c, entry, 0);
}
static inline void af_to_scheduler() { swapcontext(&af_contexts[af_self - af_fibers], &af_main_context); }
static inline void af_to_fiber() { swapcontext(&af_main_context, &af_contexts[af_self - af_fibers]); }
#endif

// Ends the launch: the first message stays.
static void af_fail(const char* format, ...) {
  if (!af_failed) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(af_message, (size_t)af_message_bytes, format, arguments);
    va_end(arguments);
    af_failed = true;
  }
  if (af_in_fiber) {
    af_to_scheduler();  // which does not come back to a launch that failed
    abort();
  }
  longjmp(af_abort, 1);
}

static void af_copy_finish();

static void af_fiber_main() {
  af_thread();
  af_copy_finish();
  af_self->state = AF_DONE;
  af_to_scheduler();
  abort();
}

// Waits for the other threads of the warp or block.
static inline void af_meet(af_state state, int site) {
  af_self->state = state;
  af_self->site = site;
  af_to_scheduler();
}
static inline void af_sync_block(int line) { af_meet(AF_AT_BLOCK, line); }
static inline void af_sync_warp(int line) { af_meet(AF_AT_WARP, line); }

static const char* af_describe(const af_fiber& f, char* text, int bytes) {
  switch (f.state) {
    case AF_AT_BLOCK: snprintf(text, (size_t)bytes, "waits at the block's barrier of line %d", f.site); break;
    case AF_AT_WARP: snprintf(text, (size_t)bytes, "waits at the warp's barrier of line %d", f.site); break;
    case AF_AT_SHUFFLE: snprintf(text, (size_t)bytes, "waits at a shuffle over a distance of %d lanes", f.site); break;
    case AF_DONE: snprintf(text, (size_t)bytes, "has ended"); break;
    default: snprintf(text, (size_t)bytes, "runs"); break;
  }
  return text;
}

// Threads first .. first+count-1 go on when all of them stand at the same meeting.
static bool af_release(int first, int count, bool block) {
  const af_fiber& one = af_fibers[first];
  if (one.state == AF_DONE || (one.state == AF_AT_BLOCK) != block) return false;
  for (int k = 1; k < count; ++k) {
    const af_fiber& f = af_fibers[first + k];
    if (f.state != one.state || f.site != one.site) return false;
  }
  const bool barrier = one.state == AF_AT_WARP;
  for (int k = 0; k < count; ++k) af_fibers[first + k].state = AF_RUNNING;
  if (barrier) ++af_warp_epoch[first / 32];
  return true;
}

// Runs a block's threads in the given order until all have ended.
static void af_run_fibers(int threads, const int* order, char* stacks) {
  for (int t = 0; t < threads; ++t) {
    af_fibers[t].state = AF_RUNNING;
    af_prepare(&af_fibers[t], stacks + (size_t)t * AF_STACK_BYTES, af_fiber_main);
  }
  for (;;) {
    for (int k = 0; k < threads; ++k) {
      af_self = &af_fibers[order[k]];
      if (af_self->state != AF_RUNNING) continue;
      threadIdx.x = (unsigned int)order[k];
      af_in_fiber = true;
      af_to_fiber();
      af_in_fiber = false;
      if (af_failed) longjmp(af_abort, 1);
    }
    bool moved = false;
    for (int first = 0; first < threads; first += 32) {
      moved |= af_release(first, threads - first < 32 ? threads - first : 32, false);
    }
    if (moved) continue;
    if (af_release(0, threads, true)) {
      ++af_epoch;
      continue;
    }
    int other = -1;
    bool all_done = true;
    for (int t = 0; t < threads; ++t) all_done &= af_fibers[t].state == AF_DONE;
    if (all_done) return;
    // name two threads that wait for each other: of one warp where its own meeting is at fault
    int one = 0;
    for (int t = 1; t < threads && other < 0; ++t) {
      if (af_fibers[t].state != af_fibers[t - 1].state || af_fibers[t].site != af_fibers[t - 1].site) one = t - 1, other = t;
    }
    char left[96], right[96];
    af_describe(af_fibers[one], left, sizeof left);
    af_describe(af_fibers[other < 0 ? one : other], right, sizeof right);
    af_fail("threads diverge at a barrier: thread %d %s, thread %d %s (block %u)", one, left, other, right, blockIdx.x);
  }
}
