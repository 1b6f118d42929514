/* What the parts of the runtime know of each other. C11, nothing but libc; general.c is compiled
 * with general registers only, because it runs before anything else was saved. */
#ifndef REPROBE_RT_INTERNAL_H
#define REPROBE_RT_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

/* What the header declares is exported, and nothing else. */
#pragma GCC visibility push(default)
#include "reprobe/rt.h"
#pragma GCC visibility pop

#define RT_HIDDEN __attribute__((visibility("hidden")))

/* A slot as the sled's code reads it (docs/format.md, "Slots"). */
struct rt_slot {
  uint32_t attachments;
  uint32_t zero;
  void* entry;
  void* argument;
};

enum rt_place { RT_NOTHING, RT_CONSTANT, RT_REGISTER, RT_HIGH_BYTE, RT_VECTOR, RT_MEMORY };

/* An argument, taken apart. Registers by their numbers in instructions; -1: none. */
struct rt_operand {
  enum rt_place place;
  int8_t reg; /* of RT_MEMORY the base */
  int8_t index;
  uint8_t scale;
  uint8_t size;
  bool is_signed;
  bool is_float;
  bool thread; /* relative to %fs */
  int64_t number;
};
#define RT_MOST_ARGUMENTS 16

struct rt_site;
struct rt_call {
  const struct rt_site* site;
  reprobe_rt_handler handler;
  void* context;
  struct reprobe_rt_attachment* attachment;
  bool full;
};
/* Never changed once it is published: another takes its place. */
struct rt_calls {
  unsigned count;
  bool full;            /* one of them needs the whole state saved */
  uint64_t unpublished; /* when it was */
  struct rt_calls* next_garbage;
  struct rt_call call[];
};

struct rt_site {
  struct rt_calls* calls; /* atomic; null: none. Of probes with one slot the first one has them */
  struct rt_slot* slot;   /* null: not attachable */
  uint16_t* semaphore;    /* the counter that the program checks before the probe, or null */
  struct rt_site* first;  /* at this slot; itself, if no other is there before it */
  struct rt_site* next;   /* atomic: of all, in the order in which they were found */
  struct rt_object* object;
  struct reprobe_rt_probe probe;
  struct rt_operand operands[RT_MOST_ARGUMENTS];
};

/* A loaded object with an index. */
struct rt_object {
  struct rt_object* next;
  const void* index; /* the descriptor */
  uintptr_t bias;
  char* path;
  bool loaded;
  bool seen; /* in the walk over the loaded objects that goes on */
  struct rt_site** sites;
  unsigned count;
  uintptr_t slots, slots_end; /* pages that hold the slots */
  bool open;                  /* they are writable */
};

/* One a thread, never given back to the system. */
struct rt_thread {
  const struct rt_calls* calls; /* atomic; that it is in, null outside of handlers */
  uint64_t frame;               /* %rsp of the hit that is being handled */
  uint64_t nested;
  int tid; /* 0: free */
  struct rt_thread* next;
} __attribute__((aligned(64)));

/* thunk.S */
RT_HIDDEN void reprobe_rt_thunk(void);
RT_HIDDEN void reprobe_rt_saving(void (*call)(void*, const void*), void* argument, size_t size);

/* general.c */
RT_HIDDEN void reprobe_rt_dispatch(struct reprobe_rt_registers* registers, struct rt_site* site);
RT_HIDDEN extern __thread struct rt_thread* rt_self __attribute__((tls_model("initial-exec")));
/* ThreadSanitizer takes the slots for constants: a program's read-only segment. */
RT_HIDDEN void rt_set_slot(struct rt_slot* slot, struct rt_site* site, uint32_t attachments);
/* Bytes that XSAVEC writes; 0: the processor has it not, FXSAVE is used. */
RT_HIDDEN extern size_t rt_state_size;
/* The system has no membarrier: hits pass a barrier of their own. */
RT_HIDDEN extern bool rt_needs_fence;

/* threads.c */
RT_HIDDEN struct rt_thread* rt_register_thread(void);
RT_HIDDEN extern struct rt_thread* rt_threads; /* atomic */
RT_HIDDEN void rt_start_threads(void);
/* Every other thread passes a barrier: a list that was unpublished before it is in the `calls` of
 * all threads that will still read it. */
RT_HIDDEN void rt_barrier_for_all(void);
RT_HIDDEN bool rt_is_read(const struct rt_calls* calls);
RT_HIDDEN void rt_forget_dead_threads(void);
RT_HIDDEN bool rt_in_handler(void);
RT_HIDDEN bool rt_on_signal_stack(void);
RT_HIDDEN void rt_forget_other_threads(void);
RT_HIDDEN int rt_thread_id(void);

/* objects.c */
RT_HIDDEN extern struct rt_site* rt_sites; /* atomic */
/* With the lock: calls `found` with each site of a new object. */
RT_HIDDEN void rt_find_objects(void (*found)(struct rt_site* site));
/* Makes the slots of an object writable, or, where REPROBE_SLOTS=readonly says so, ends that. Gives
 * 0 or a negative errno value. */
RT_HIDDEN int rt_open_slots(struct rt_object* object);
RT_HIDDEN void rt_close_slots(struct rt_object* object);

/* operands.c */
RT_HIDDEN unsigned rt_parse_arguments(const char* text, struct rt_operand* operands);

/* memory.c: of mmap, so that a probe in malloc may attach; the lock is held. */
RT_HIDDEN void* rt_allocate(size_t size);
RT_HIDDEN void rt_release(void* block);

/* attach.c: the lock, with all signals blocked; false where this thread holds it already. */
RT_HIDDEN bool rt_lock(void);
RT_HIDDEN void rt_unlock(void);

#endif
