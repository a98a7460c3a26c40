// The host's thread team: it runs all launches of a program in one call.
//
// Thread 0 is the caller. All threads walk the list of launches in step, with a barrier where one launch may need what another
// wrote. A thread that waits spins for a bounded time and then sleeps on a futex, so a team never burns a core that others need for
// longer than that. The blocks of a launch are dealt out in equal ranges, one a thread: the same thread meets the same part of the
// data in launch after launch. Who is done takes chunks from the others' ranges, so a thread that lost its core does
// not hold up the rest. Launches marked serial run on the caller alone, and wake nobody when the whole program is such.
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef void (*Kernel)(void* const* args, int64_t begin, int64_t end, char* scratch);

struct Launch {
  Kernel kernel;
  void* const* args;
  int64_t grid;
  int64_t chunk;  // blocks that a thread takes at a time
  int64_t serial;
};

struct Program {
  const Launch* launches;
  int64_t count;
};

enum { kMaxThreads = 256, kLine = 64 };

struct alignas(kLine) Range {
  int64_t next;
  int64_t end;
};

struct alignas(kLine) Gate {  // a generation that threads wait to change
  uint32_t generation;
  int32_t sleepers;
};

struct Team {
  int threads;
  int64_t spin_ns;
  int closing;
  Gate start;
  Gate step;
  alignas(kLine) int32_t arrived;
  alignas(kLine) Range ranges[2][kMaxThreads];
  char* scratch[kMaxThreads];
  int64_t scratch_bytes;
  const Program* program;
  int repeats;
  int64_t* whole;
  int64_t* stamps;
  pthread_t handles[kMaxThreads];
  int started;
};

static int64_t now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

static void open_gate(Gate* g) {
  __atomic_fetch_add(&g->generation, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&g->sleepers, __ATOMIC_SEQ_CST) > 0)
    syscall(SYS_futex, &g->generation, FUTEX_WAKE_PRIVATE, kMaxThreads, nullptr, nullptr, 0);
}

static void wait_gate(Gate* g, uint32_t seen, int64_t spin_ns) {
  int64_t deadline = 0;
  for (int64_t k = 1;; ++k) {
    if (__atomic_load_n(&g->generation, __ATOMIC_ACQUIRE) != seen) return;
    relax();
    if (k % 32 == 0) {  // reading the clock costs as much as some pauses
      const int64_t t = now();
      if (deadline == 0) deadline = t + spin_ns;
      else if (t > deadline) break;
    }
  }
  __atomic_fetch_add(&g->sleepers, 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&g->generation, __ATOMIC_SEQ_CST) == seen)
    syscall(SYS_futex, &g->generation, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
  __atomic_fetch_sub(&g->sleepers, 1, __ATOMIC_SEQ_CST);
}

static void barrier(Team* t) {
  const uint32_t seen = __atomic_load_n(&t->step.generation, __ATOMIC_ACQUIRE);
  if (__atomic_add_fetch(&t->arrived, 1, __ATOMIC_ACQ_REL) == t->threads) {
    __atomic_store_n(&t->arrived, 0, __ATOMIC_RELAXED);
    open_gate(&t->step);
  } else {
    wait_gate(&t->step, seen, t->spin_ns);
  }
}

static void run_shared(Team* t, const Launch* l, Range* ranges, int self) {
  for (int k = 0; k < t->threads; ++k) {
    Range* r = &ranges[(self + k) % t->threads];
    const int64_t end = r->end;
    while (__atomic_load_n(&r->next, __ATOMIC_RELAXED) < end) {
      const int64_t begin = __atomic_fetch_add(&r->next, l->chunk, __ATOMIC_RELAXED);
      if (begin >= end) break;
      l->kernel(l->args, begin, begin + l->chunk < end ? begin + l->chunk : end, t->scratch[self]);
    }
  }
}

static void deal(Team* t, const Launch* l, Range* ranges, int self) {
  ranges[self].next = l->grid * self / t->threads;
  ranges[self].end = l->grid * (self + 1) / t->threads;
}

// The next launch at or after i that all threads share; count where there is none.
static int64_t next_shared(const Program* p, int64_t i) {
  while (i < p->count && p->launches[i].serial) ++i;
  return i;
}

// One run by one thread. Ranges of a launch are dealt while another set is in use: before the first barrier that precedes it.
static void run_program(Team* t, const Program* p, int self, int64_t* stamps) {
  int parity = 0;
  int64_t shared = next_shared(p, 0);
  if (shared < p->count) {
    deal(t, &p->launches[shared], t->ranges[parity], self);
    if (shared == 0) barrier(t);  // else the barrier after the serial launches before it will do
  }
  for (int64_t i = 0; i < p->count; ++i) {
    const Launch* l = &p->launches[i];
    if (l->serial) {
      if (self != 0) continue;
      const int64_t before = stamps ? now() : 0;
      if (l->grid > 0) l->kernel(l->args, 0, l->grid, t->scratch[0]);
      if (stamps) stamps[i] = now() - before;
      continue;
    }
    if (i > 0 && p->launches[i - 1].serial) barrier(t);  // wait for what the caller wrote alone
    const int64_t before = stamps && self == 0 ? now() : 0;
    run_shared(t, l, t->ranges[parity], self);
    shared = next_shared(p, i + 1);
    parity ^= 1;
    if (shared < p->count) deal(t, &p->launches[shared], t->ranges[parity], self);
    barrier(t);
    if (stamps && self == 0) stamps[i] = now() - before;
  }
}

static void run_alone(Team* t, const Program* p, int64_t* stamps) {
  for (int64_t i = 0; i < p->count; ++i) {
    const Launch* l = &p->launches[i];
    const int64_t before = stamps ? now() : 0;
    if (l->grid > 0) l->kernel(l->args, 0, l->grid, t->scratch[0]);
    if (stamps) stamps[i] = now() - before;
  }
}

struct Worker {
  Team* team;
  int self;
  uint32_t seen;
};

static void* work(void* data) {
  Worker w = *(Worker*)data;
  free(data);
  Team* t = w.team;
  for (;;) {
    wait_gate(&t->start, w.seen, t->spin_ns);
    ++w.seen;
    if (__atomic_load_n(&t->closing, __ATOMIC_ACQUIRE)) return nullptr;
    const Program* p = t->program;
    const int repeats = t->repeats;
    for (int r = 0; r < repeats; ++r) run_program(t, p, w.self, nullptr);
    barrier(t);  // nobody may start the next call while another is still in this one
  }
}

extern "C" {

// A team of that many threads; null where memory or threads are lacking.
__attribute__((visibility("default"))) Team* af_team_create(int threads, int64_t spin_ns) {
  if (threads < 1 || threads > kMaxThreads) return nullptr;
  void* memory = nullptr;
  if (posix_memalign(&memory, kLine, sizeof(Team)) != 0) return nullptr;
  memset(memory, 0, sizeof(Team));
  Team* t = (Team*)memory;
  t->threads = threads;
  t->spin_ns = spin_ns;
  return t;
}

__attribute__((visibility("default"))) void af_team_close(Team* t) {
  __atomic_store_n(&t->closing, 1, __ATOMIC_RELEASE);
  open_gate(&t->start);
  for (int k = 1; k <= t->started; ++k) pthread_join(t->handles[k], nullptr);
  for (int k = 0; k < t->threads; ++k) free(t->scratch[k]);
  free(t);
}

// Scratch of at least that many bytes for each thread. 0: done, else out of memory.
__attribute__((visibility("default"))) int af_team_scratch(Team* t, int64_t bytes) {
  if (bytes <= t->scratch_bytes) return 0;
  // a line of distance and a page of alignment, so that threads do not share lines
  for (int k = 0; k < t->threads; ++k) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 4096, (size_t)bytes + 4096) != 0) return 1;
    free(t->scratch[k]);
    t->scratch[k] = (char*)memory;
  }
  t->scratch_bytes = bytes;
  return 0;
}

// Run a program `repeats` times. whole: nanoseconds of each run, or null. stamps: nanoseconds of each launch of each run, or
// null. 0: done, 1: a thread could not be started.
__attribute__((visibility("default"))) int af_run(Team* t, const Program* p, int repeats, int64_t* whole, int64_t* stamps) {
  const int together = t->threads > 1 && next_shared(p, 0) < p->count;
  if (together) {
    while (t->started < t->threads - 1) {
      Worker* w = (Worker*)malloc(sizeof(Worker));
      if (!w) return 1;
      *w = Worker{t, t->started + 1, __atomic_load_n(&t->start.generation, __ATOMIC_ACQUIRE)};
      if (pthread_create(&t->handles[t->started + 1], nullptr, work, w) != 0) {
        free(w);
        return 1;
      }
      ++t->started;
    }
    t->program = p;
    t->repeats = repeats;
    open_gate(&t->start);
  }
  for (int r = 0; r < repeats; ++r) {
    int64_t* row = stamps ? stamps + r * p->count : nullptr;
    const int64_t before = whole ? now() : 0;
    if (together) run_program(t, p, 0, row);
    else run_alone(t, p, row);
    if (whole) whole[r] = now() - before;
  }
  if (together) barrier(t);
  return 0;
}

// Open a library and find its kernel; null on failure, with the reason in `message`.
__attribute__((visibility("default"))) void* af_open(const char* path, void** kernel, char* message, int64_t length) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  *kernel = library ? dlsym(library, "af_kernel") : nullptr;
  if (*kernel) return library;
  const char* why = dlerror();
  strncpy(message, why ? why : "no af_kernel in it", (size_t)length - 1);
  message[length - 1] = 0;
  if (library) dlclose(library);
  return nullptr;
}
__attribute__((visibility("default"))) void af_close(void* library) { dlclose(library); }
}
