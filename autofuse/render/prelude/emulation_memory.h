// Buffers that check each access, and asynchronous copies that land at their wait.
#pragma once

// What was done to one shared element since the last barrier of the block.
struct af_shadow {
  unsigned int write_epoch, write_sync;
  unsigned int read_epoch, read_warps;
  unsigned int sync[2];
  short reader[2];  // the last reader, and the last one before it that is another thread
  short writer;
  short in_flight;  // asynchronous copies into it that have not landed
};

static unsigned char* af_shared_base;
static af_shadow* af_shadows;

static void af_race(const char* name, long long i, const char* did, int one, const char* does, int other) {
  af_fail("race on shared buffer %s, element %lld: thread %d %s it and thread %d %s it with no barrier between (block %u)", name,
          i, one, did, other, does, blockIdx.x);
}

// Whether what thread `one` did is ordered before the running thread by a barrier of their warp.
static inline bool af_ordered(int one, int other, unsigned int sync) {
  return one == other || (one / 32 == other / 32 && sync != af_warp_epoch[other / 32]);
}

static inline void af_check_read(af_shadow* s, const char* name, long long i) {
  const int t = (int)threadIdx.x;
  if (s->in_flight) {
    af_fail("shared buffer %s, element %lld: thread %d reads it while an asynchronous copy into it is under way (block %u)", name,
            i, t, blockIdx.x);
  }
  if (s->write_epoch == af_epoch && !af_ordered(s->writer, t, s->write_sync)) af_race(name, i, "writes", s->writer, "reads", t);
  if (s->read_epoch != af_epoch) {
    s->read_epoch = af_epoch;
    s->read_warps = 0;
    s->reader[0] = s->reader[1] = -1;
  }
  s->read_warps |= 1u << (t / 32);
  if (s->reader[0] != t) {
    s->reader[1] = s->reader[0];
    s->sync[1] = s->sync[0];
    s->reader[0] = (short)t;
  }
  s->sync[0] = af_warp_epoch[t / 32];
}

static inline void af_check_write(af_shadow* s, const char* name, long long i, bool landing) {
  const int t = (int)threadIdx.x;
  if (s->in_flight && !landing) {
    af_fail("shared buffer %s, element %lld: thread %d writes it while an asynchronous copy into it is under way (block %u)", name,
            i, t, blockIdx.x);
  }
  if (s->write_epoch == af_epoch && !af_ordered(s->writer, t, s->write_sync)) af_race(name, i, "writes", s->writer, "writes", t);
  if (s->read_epoch == af_epoch) {
    for (int k = 0; k < 2; ++k) {
      if (s->reader[k] >= 0 && !af_ordered(s->reader[k], t, s->sync[k])) af_race(name, i, "reads", s->reader[k], "writes", t);
    }
    const unsigned int others = s->read_warps & ~(1u << (t / 32));
    // an older reader of another warp: which of its threads is no longer known
    if (others) af_race(name, i, "reads", __builtin_ctz(others) * 32, "writes", t);
  }
  s->write_epoch = af_epoch;
  s->write_sync = af_warp_epoch[t / 32];
  s->writer = (short)t;
}

static inline void af_check_bounds(const char* scope, const char* name, long long i, long long size) {
  if (i < 0 || i >= size) {
    af_fail("%s buffer %s has %lld elements: thread %u of block %u goes to element %lld", scope, name, size, threadIdx.x,
            blockIdx.x, i);
  }
}

static inline void af_check_aligned(const char* name, const void* p, long long i, int bytes) {
  if ((uintptr_t)p % (uintptr_t)bytes != 0) {
    af_fail("buffer %s, element %lld: thread %u takes %d bytes at once from an address that is no multiple of it", name, i,
            threadIdx.x, bytes);
  }
}

// Where an asynchronous copy will land.
struct af_landing {
  void* target;
  af_shadow* shadow;
  const char* name;
  long long index;
};

// A parameter: memory of known size.
template <class T>
struct af_global {
  typedef T element;
  T* data;
  long long size;
  const char* name;

  T operator[](long long i) const {
    af_check_bounds("global", name, i, size);
    return data[i];
  }
  void write(long long i, T value) const {
    af_check_bounds("global", name, i, size);
    data[i] = value;
  }
  void check_alignment(long long i, int lanes) const { af_check_aligned(name, data + i, i, lanes * (int)sizeof(T)); }
};

// A buffer of the block's shared memory, at an offset that is the same in all its threads.
template <class T>
struct af_shared {
  typedef T element;
  T* data;
  af_shadow* shadows;
  long long size;
  const char* name;

  af_shared(long long offset, long long count, const char* called)
      : data((T*)(af_shared_base + offset)), shadows(af_shadows + offset), size(count), name(called) {}
  T operator[](long long i) const {
    af_check_bounds("shared", name, i, size);
    af_check_read(shadows + i, name, i);
    return data[i];
  }
  void write(long long i, T value) const {
    af_check_bounds("shared", name, i, size);
    af_check_write(shadows + i, name, i, false);
    data[i] = value;
  }
  // The copy counts as a write when it begins (others may still read what it replaces) and when it lands.
  af_landing write_later(long long i) const {
    af_check_bounds("shared", name, i, size);
    af_check_write(shadows + i, name, i, false);
    ++shadows[i].in_flight;
    const af_landing out = {data + i, shadows + i, name, i};
    return out;
  }
  void check_alignment(long long i, int lanes) const { af_check_aligned(name, data + i, i, lanes * (int)sizeof(T)); }
};

// Private to a thread, and poisoned.
template <class T, int N>
struct af_registers {
  T data[N];
  const char* name;

  explicit af_registers(const char* called) : name(called) { memset((void*)data, 0xff, sizeof data); }
  T& operator[](long long i) {
    af_check_bounds("register", name, i, N);
    return data[i];
  }
};

#define AF_INPUT(T, name) const af_global<T> name
#define AF_OUTPUT(T, name) const af_global<T> name
#define AF_PASSED(T, name) const af_global<T> name
#define AF_REGISTER(T, name, size) af_registers<T, size> name(#name)
#define AF_SHARED(T, name, size, offset) const af_shared<T> name(offset, size, #name)
#define AF_SHARED_DYNAMIC(T, name, size, offset) const af_shared<T> name(offset, size, #name)

struct af_copy {
  af_copy* next;
  af_landing to;
  unsigned int group;  // 0 until it is committed
  int bytes;
  unsigned char value[16];
};

// The value is what the source held when the copy began; it is seen only once the copy has landed.
static void af_copy_begin(af_landing to, const void* value, int bytes) {
  af_copy* c = (af_copy*)malloc(sizeof(af_copy));
  c->next = 0;
  c->to = to;
  c->group = 0;
  c->bytes = bytes;
  memcpy(c->value, value, (size_t)bytes);
  if (af_self->copies) {
    af_self->last_copy->next = c;
  } else {
    af_self->copies = c;
  }
  af_self->last_copy = c;
}

static void af_copy_commit() {
  const unsigned int group = ++af_self->groups;
  for (af_copy* c = af_self->copies; c; c = c->next) {
    if (c->group == 0) c->group = group;
  }
}

static void af_copy_wait(int pending) {
  while (af_self->copies) {
    af_copy* c = af_self->copies;
    if (c->group == 0 || (long long)c->group > (long long)af_self->groups - pending) return;
    af_check_write(c->to.shadow, c->to.name, c->to.index, true);
    memcpy(c->to.target, c->value, (size_t)c->bytes);
    --c->to.shadow->in_flight;
    af_self->copies = c->next;
    free(c);
  }
}

// What a thread never waited for lands when it ends, unseen.
static void af_copy_finish() {
  while (af_self->copies) {
    af_copy* c = af_self->copies;
    --c->to.shadow->in_flight;
    af_self->copies = c->next;
    free(c);
  }
  af_self->groups = 0;
}
