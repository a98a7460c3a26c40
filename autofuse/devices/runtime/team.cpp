// The host's thread team: it runs all launches of a program in one call.
//
// The caller is thread 0 and works like the others. A launch is over when all its chunks are done, not when all threads have come:
// who finishes the last chunk deals out the next launch, so a thread that lost its core holds up nobody unless it lost it in the middle of a
// chunk. The chunks of a launch are dealt out in equal ranges, one a thread: the same thread meets the same part of the data in launch
// after launch. Who is done takes chunks from the others' ranges. Launches marked serial are run at once by whoever finished the one before,
// and wake nobody when the whole program is such. A thread that waits spins for a bounded time and then sleeps on a
// futex, so a team never burns a core that others need for longer than that.
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
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

// Chunks of one launch, for one thread to begin with. `state` is the launch's number (upper half) and the next chunk (lower half): a chunk is
// claimed by exchanging both at once, so that a thread that slept through launches cannot claim from a range dealt anew.
struct alignas(kLine) Range {
  uint64_t state;
  uint64_t end;
};
constexpr uint64_t kClosed = 0xffffffff;

struct alignas(kLine) Gate {  // a generation that threads wait to change
  uint32_t generation;
  int32_t sleepers;
};

struct Team {
  int threads;
  int64_t spin_ns;
  Gate gate;
  alignas(kLine) int64_t done;  // chunks of the launch under way that are finished
  alignas(kLine) Range ranges[kMaxThreads];
  char* scratch[kMaxThreads];
  int64_t scratch_bytes;
  int closing;
  pthread_t handles[kMaxThreads];
  int started;
  int home;    // the core of the thread that runs programs, when it last was looked at; -1 before
  int placed;  // workers that were kept away from it
  // what the thread that deals out launches alone changes
  alignas(kLine) const Program* program;
  int64_t launch;
  int64_t chunks;
  uint64_t number;  // of the launch, over all programs
  int64_t launched;
  int64_t begun;
  int repeat, repeats;
  int64_t* whole;
  int64_t* stamps;
  int finished;
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

// Deal out a launch that threads share. A range is closed while its end changes.
static void deal(Team* t, const Launch* l) {
  t->chunks = (l->grid + l->chunk - 1) / l->chunk;
  t->done = 0;
  const uint64_t number = ++t->number << 32;
  for (int k = 0; k < t->threads; ++k) {
    Range* r = &t->ranges[k];
    __atomic_store_n(&r->state, number | kClosed, __ATOMIC_SEQ_CST);
    __atomic_store_n(&r->end, (uint64_t)(t->chunks * (k + 1) / t->threads), __ATOMIC_RELEASE);
  }
  for (int k = 0; k < t->threads; ++k)
    __atomic_store_n(&t->ranges[k].state, number | (uint64_t)(t->chunks * k / t->threads), __ATOMIC_RELEASE);
  open_gate(&t->gate);
}

// Go on from a launch that is over: run serial launches here, deal out the next shared one, or end the run.
static void advance(Team* t, int self) {
  const Program* p = t->program;
  for (;;) {
    if (++t->launch >= p->count) {
      const int64_t time = t->whole ? now() : 0;
      if (t->whole) t->whole[t->repeat] = time - t->begun;
      if (++t->repeat == t->repeats) {
        __atomic_store_n(&t->finished, 1, __ATOMIC_RELEASE);
        open_gate(&t->gate);
        return;
      }
      t->begun = time;
      t->launch = 0;
    }
    const Launch* l = &p->launches[t->launch];
    t->launched = t->stamps ? now() : 0;
    if (!l->serial && l->grid > 0) {
      deal(t, l);
      return;
    }
    if (l->grid > 0) l->kernel(l->args, 0, l->grid, t->scratch[self]);
    if (t->stamps) t->stamps[t->repeat * p->count + t->launch] = now() - t->launched;
  }
}

// Claim the next chunk of a range; -1 where none is left.
static int64_t claim(Range* r) {
  uint64_t state = __atomic_load_n(&r->state, __ATOMIC_ACQUIRE);
  for (;;) {
    const uint64_t next = state & kClosed;
    if (next >= __atomic_load_n(&r->end, __ATOMIC_ACQUIRE)) return -1;
    if (__atomic_compare_exchange_n(&r->state, &state, state + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return (int64_t)next;
  }
}

// Work on the launch under way, and on those that follow from it, while there is something to claim.
//
// Chunks that are done are counted here and told to the others once a range is used up: `done` is a line that every thread writes, and between
// distant cores each time costs as much as a part of a small chunk.
static void take_part(Team* t, int self) {
  int64_t mine = 0;
  for (int k = 0; k < t->threads;) {
    const int64_t chunk = claim(&t->ranges[(self + k) % t->threads]);
    if (chunk < 0) {
      const int64_t told = mine;
      mine = 0;
      // read before it is told: until then the launch is not over, and nothing of it changes
      const int64_t chunks = told > 0 ? t->chunks : 0;
      if (told > 0 && __atomic_add_fetch(&t->done, told, __ATOMIC_ACQ_REL) == chunks) {
        if (t->stamps) t->stamps[t->repeat * t->program->count + t->launch] = now() - t->launched;
        advance(t, self);
        k = 0;
      } else {
        ++k;
      }
      continue;
    }
    // until this chunk is told to be done the launch is not over, and nothing of it changes
    const Launch* l = &t->program->launches[t->launch];
    const int64_t begin = chunk * l->chunk, end = begin + l->chunk < l->grid ? begin + l->chunk : l->grid;
    l->kernel(l->args, begin, end, t->scratch[self]);
    ++mine;
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
};

static void* work(void* data) {
  const Worker w = *(Worker*)data;
  free(data);
  Team* t = w.team;
  for (;;) {
    const uint32_t seen = __atomic_load_n(&t->gate.generation, __ATOMIC_ACQUIRE);
    if (__atomic_load_n(&t->closing, __ATOMIC_ACQUIRE)) return nullptr;
    take_part(t, w.self);
    wait_gate(&t->gate, seen, t->spin_ns);
  }
}

// Keep the workers off the core of the thread that runs programs. A thread that sleeps is often woken on the core of the one that
// wakes it, and the scheduler takes many milliseconds to move it: two threads then share a core for as long as a run takes.
static void spread(Team* t) {
  const int home = sched_getcpu();
  if (home < 0 || (home == t->home && t->placed == t->started)) return;
  cpu_set_t others;
  if (sched_getaffinity(0, sizeof others, &others) == 0 && home < CPU_SETSIZE) {
    CPU_CLR(home, &others);
    if (CPU_COUNT(&others) > 0)
      for (int k = 1; k <= t->started; ++k) pthread_setaffinity_np(t->handles[k], sizeof others, &others);
  }
  t->home = home;
  t->placed = t->started;
}

// A line that two threads hand to each other.
struct alignas(kLine) Ball {
  int64_t turn;  // odd: the other thread's
  int64_t turns;
};

static void* hand_back(void* data) {
  Ball* b = (Ball*)data;
  for (int64_t k = 1; k < b->turns; k += 2) {
    int64_t seen;
    while ((seen = __atomic_load_n(&b->turn, __ATOMIC_ACQUIRE)) != k) {
      if (seen < 0) return nullptr;
      relax();
    }
    __atomic_store_n(&b->turn, k + 1, __ATOMIC_RELEASE);
  }
  return nullptr;
}

// Nanoseconds of a round trip to a core: the least of a few blocks, none begun after some milliseconds; 0 where no thread could be made.
static int64_t round_trip(int core) {
  enum { kBlocks = 8, kTrips = 64 };
  Ball ball = {0, 2 * kBlocks * kTrips};
  cpu_set_t there;
  CPU_ZERO(&there);
  CPU_SET(core, &there);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setaffinity_np(&attributes, sizeof there, &there);
  pthread_t other;
  const int made = pthread_create(&other, &attributes, hand_back, &ball);
  pthread_attr_destroy(&attributes);
  if (made != 0) return 0;
  const int64_t end = now() + 5000000;
  int64_t best = 0, turn = 0;
  for (int k = 0; k < kBlocks && (k < 2 || now() < end); ++k) {
    const int64_t before = now();
    for (int i = 0; i < kTrips; ++i) {
      __atomic_store_n(&ball.turn, turn + 1, __ATOMIC_RELEASE);
      turn += 2;
      while (__atomic_load_n(&ball.turn, __ATOMIC_ACQUIRE) != turn) relax();
    }
    const int64_t each = (now() - before) / kTrips;
    if (k > 0 && (best == 0 || each < best)) best = each;  // the first block waits for the thread to start
  }
  if (turn < ball.turns) __atomic_store_n(&ball.turn, -1, __ATOMIC_RELEASE);
  pthread_join(other, nullptr);
  return best;
}

static int is_shared(const Program* p) {
  for (int64_t i = 0; i < p->count; ++i)
    if (!p->launches[i].serial && p->launches[i].grid > 0) return 1;
  return 0;
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
  t->home = -1;
  return t;
}

__attribute__((visibility("default"))) void af_team_close(Team* t) {
  __atomic_store_n(&t->closing, 1, __ATOMIC_RELEASE);
  open_gate(&t->gate);
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

// Nanoseconds that a cache line takes from this thread's core to another and back: the most over as many other usable cores as a team of that many
// threads needs; 0 where there is none. The caller stays on its core meanwhile.
__attribute__((visibility("default"))) int64_t af_exchange(int threads) {
  cpu_set_t usable, here;
  const int home = sched_getcpu();
  if (home < 0 || home >= CPU_SETSIZE || sched_getaffinity(0, sizeof usable, &usable) != 0) return 0;
  CPU_ZERO(&here);
  CPU_SET(home, &here);
  if (sched_setaffinity(0, sizeof here, &here) != 0) return 0;
  int64_t most = 0;
  for (int core = 0, left = threads - 1; core < CPU_SETSIZE && left > 0; ++core) {
    if (core == home || !CPU_ISSET(core, &usable)) continue;
    const int64_t ns = round_trip(core);
    if (ns > most) most = ns;
    --left;
  }
  sched_setaffinity(0, sizeof usable, &usable);
  return most;
}

// Run a program `repeats` times. whole: nanoseconds of each run, or null. stamps: nanoseconds of each launch of each run, or
// null. 0: done, 1: a thread could not be started.
__attribute__((visibility("default"))) int af_run(Team* t, const Program* p, int repeats, int64_t* whole, int64_t* stamps) {
  if (t->threads == 1 || !is_shared(p)) {
    for (int r = 0; r < repeats; ++r) {
      const int64_t before = whole ? now() : 0;
      run_alone(t, p, stamps ? stamps + r * p->count : nullptr);
      if (whole) whole[r] = now() - before;
    }
    return 0;
  }
  while (t->started < t->threads - 1) {
    Worker* w = (Worker*)malloc(sizeof(Worker));
    if (!w) return 1;
    *w = Worker{t, t->started + 1};
    if (pthread_create(&t->handles[t->started + 1], nullptr, work, w) != 0) {
      free(w);
      return 1;
    }
    ++t->started;
  }
  if (repeats < 1) return 0;
  spread(t);
  t->program = p;
  t->launch = -1;
  t->repeat = 0;
  t->repeats = repeats;
  t->whole = whole;
  t->stamps = stamps;
  t->finished = 0;
  t->begun = whole ? now() : 0;
  advance(t, 0);
  for (;;) {
    const uint32_t seen = __atomic_load_n(&t->gate.generation, __ATOMIC_ACQUIRE);
    take_part(t, 0);
    if (__atomic_load_n(&t->finished, __ATOMIC_ACQUIRE)) return 0;
    wait_gate(&t->gate, seen, t->spin_ns);
  }
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
