/* What happens at a hit. Compiled with general registers only: what the program has in the others
 * is in them still. A handler that may use them is called through reprobe_rt_saving(). */
#include <errno.h>
#include <stddef.h>

#include "internal.h"

__thread struct rt_thread* rt_self __attribute__((tls_model("initial-exec")));
size_t rt_state_size;
bool rt_needs_fence;

struct rt_full_call {
  const struct rt_call* call;
  struct reprobe_rt_hit hit;
};

static void call_full(void* argument, const void* state) {
  struct rt_full_call* full = argument;
  full->hit.state = state;
  /* A handler of the other class calls nothing that sets it. */
  const int error = errno;
  full->call->handler(&full->hit, full->call->context);
  errno = error;
}

/* A handler that called reprobe_rt_leave() and came back all the same is the last: the list may be
 * gone. */
__attribute__((noinline)) static void call_all(const struct rt_thread* self,
                                               const struct rt_calls* calls,
                                               const struct reprobe_rt_registers* registers) {
  for (unsigned i = 0; i < calls->count; ++i) {
    const struct rt_call* call = &calls->call[i];
    if (call->full) {
      struct rt_full_call full = {call, {&call->site->probe, registers, 0}};
      reprobe_rt_saving(call_full, &full, rt_state_size);
    } else {
      const struct reprobe_rt_hit hit = {&call->site->probe, registers, 0};
      call->handler(&hit, call->context);
    }
    if (__builtin_expect(__atomic_load_n(&self->calls, __ATOMIC_RELAXED) != calls, 0)) return;
  }
}

/* The thread was in a handler already: did it leave that by longjmp? The stack then is shorter than
 * it was, unless a signal has a stack of its own. */
static bool has_left(const struct rt_thread* self, uint64_t frame) {
  return frame > self->frame && !rt_on_signal_stack();
}

struct entry {
  struct rt_thread* self; /* null at the end: the hit calls nobody */
  uint64_t frame;
};

static void enter_with_libc(void* argument, const void* state) {
  (void)state;
  struct entry* entry = argument;
  const int error = errno;
  if (entry->self == 0) entry->self = rt_register_thread();
  struct rt_thread* self = entry->self;
  if (self != 0 && self->calls != 0) {
    if (has_left(self, entry->frame)) {
      __atomic_store_n(&self->calls, 0, __ATOMIC_RELEASE);
    } else {
      __atomic_store_n(&self->nested, self->nested + 1, __ATOMIC_RELAXED);
      entry->self = 0;
    }
  }
  errno = error;
}

/* A thread's first hit, and one in a handler. What it calls of libc may use any register. */
__attribute__((noinline, cold)) static struct rt_thread* enter_slowly(struct rt_thread* self,
                                                                      uint64_t frame) {
  struct entry entry = {self, frame};
  reprobe_rt_saving(enter_with_libc, &entry, rt_state_size);
  return entry.self;
}

/* The calls of the site, of which the thread says that it reads them. Who unpublished them has
 * every thread pass a barrier (membarrier) before it looks: a thread that said so too late for that
 * sees, when it looks again, that they are others now. So no barrier is needed here but the
 * compiler's. */
static const struct rt_calls* take_calls(struct rt_thread* self, const struct rt_site* site) {
  const struct rt_calls* calls = __atomic_load_n(&site->calls, __ATOMIC_ACQUIRE);
  for (;;) {
    __atomic_store_n(&self->calls, calls, __ATOMIC_RELAXED);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    if (__builtin_expect(rt_needs_fence, 0)) __atomic_thread_fence(__ATOMIC_SEQ_CST);
    const struct rt_calls* now = __atomic_load_n(&site->calls, __ATOMIC_ACQUIRE);
    if (__builtin_expect(now == calls, 1)) return calls;
    calls = now;
  }
}

/* The sled reads the number first and then the words behind it. */
void rt_set_slot(struct rt_slot* slot, struct rt_site* site, uint32_t attachments) {
  if (attachments != 0) {
    __atomic_store_n(&slot->entry, (void*)reprobe_rt_thunk, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->argument, (void*)site, __ATOMIC_RELAXED);
  }
  __atomic_store_n(&slot->attachments, attachments, __ATOMIC_RELEASE);
}

void reprobe_rt_dispatch(struct reprobe_rt_registers* registers, struct rt_site* site) {
  struct rt_thread* self = rt_self;
  const uint64_t frame = registers->general[4];
  if (__builtin_expect(self == 0 || self->calls != 0, 0)) {
    self = enter_slowly(self, frame);
    if (self == 0) return;
  }
  self->frame = frame;
  const struct rt_calls* calls = take_calls(self, site);
  if (calls == 0) return;
  if (__builtin_expect(calls->count == 1 && !calls->full, 1)) {
    const struct rt_call* call = &calls->call[0];
    const struct reprobe_rt_hit hit = {&call->site->probe, registers, 0};
    call->handler(&hit, call->context);
  } else {
    call_all(self, calls, registers);
  }
  __atomic_store_n(&self->calls, 0, __ATOMIC_RELEASE);
}

void reprobe_rt_leave(void) {
  if (rt_self != 0) __atomic_store_n(&rt_self->calls, 0, __ATOMIC_RELEASE);
}

#define VECTOR(n)                                \
  case n:                                        \
    __asm__("movq %%xmm" #n ", %0" : "=m"(low)); \
    break;

static bool vector_of(const struct reprobe_rt_hit* hit, unsigned number, uint64_t* bits) {
  uint64_t low = 0;
  if (number > 15) return false;
  if (hit->state != 0) {
    /* Intel SDM volume 1, 13.4: the legacy region, and XSTATE_BV behind it. XSAVEC leaves out what
     * is in its first state: zeros. FXSAVE writes all and leaves the header alone. */
    const unsigned char* area = hit->state;
    const bool saved = rt_state_size == 0 || (*(const uint64_t*)(area + 512) & 2) != 0;
    *bits = saved ? *(const uint64_t*)(area + 160 + 16 * number) : 0;
    return true;
  }
  switch (number) {
    VECTOR(0)
    VECTOR(1)
    VECTOR(2)
    VECTOR(3) VECTOR(4) VECTOR(5) VECTOR(6) VECTOR(7) VECTOR(8) VECTOR(9) VECTOR(10) VECTOR(11)
        VECTOR(12) VECTOR(13) VECTOR(14) VECTOR(15)
  }
  *bits = low;
  return true;
}

static uint64_t thread_base(void) {
  uint64_t base;
  __asm__("mov %%fs:0, %0" : "=r"(base)); /* x86-64 TLS ABI: the thread pointer stands there */
  return base;
}

static uint64_t in_memory(const struct reprobe_rt_hit* hit, const struct rt_operand* operand) {
  uint64_t at = (uint64_t)operand->number;
  if (operand->reg >= 0) at += hit->registers->general[operand->reg];
  if (operand->index >= 0) at += hit->registers->general[operand->index] * operand->scale;
  if (operand->thread) at += thread_base();
  switch (operand->size) {
    case 1:
      return *(const uint8_t*)at;
    case 2: {
      uint16_t bits;
      __builtin_memcpy(&bits, (const void*)at, sizeof bits);
      return bits;
    }
    case 4: {
      uint32_t bits;
      __builtin_memcpy(&bits, (const void*)at, sizeof bits);
      return bits;
    }
    default: {
      uint64_t bits;
      __builtin_memcpy(&bits, (const void*)at, sizeof bits);
      return bits;
    }
  }
}

static uint64_t extended(uint64_t bits, unsigned size, bool is_signed) {
  if (size >= 8) return bits;
  const uint64_t top = (uint64_t)1 << (8 * size - 1);
  bits &= top - 1 + top;
  return is_signed ? (bits ^ top) - top : bits;
}

int reprobe_rt_argument(const struct reprobe_rt_hit* hit, unsigned number,
                        struct reprobe_rt_value* value) {
  const struct rt_site* site =
      (const struct rt_site*)((const char*)hit->probe - offsetof(struct rt_site, probe));
  if (number >= hit->probe->argument_count) return -ERANGE;
  if (number >= RT_MOST_ARGUMENTS) return -ENOTSUP;
  const struct rt_operand* operand = &site->operands[number];
  uint64_t bits = 0;
  switch (operand->place) {
    case RT_CONSTANT:
      bits = (uint64_t)operand->number;
      break;
    case RT_REGISTER:
      bits = hit->registers->general[operand->reg];
      break;
    case RT_HIGH_BYTE:
      bits = hit->registers->general[operand->reg] >> 8;
      break;
    case RT_VECTOR:
      if (!vector_of(hit, (unsigned)operand->reg, &bits)) return -ENOTSUP;
      break;
    case RT_MEMORY:
      bits = in_memory(hit, operand);
      break;
    case RT_NOTHING:
      return -ENOTSUP;
  }
  value->size = operand->size;
  value->is_signed = operand->is_signed;
  value->is_float = operand->is_float;
  value->bits = extended(bits, operand->size, operand->is_signed && !operand->is_float);
  return 0;
}
