/* Compiled with general registers only. */
#include "libprobe/agent/counting.h"

void reprobe_agent_count(const struct reprobe_rt_hit* hit, void* entry) {
  (void)hit;
  struct reprobe_table_entry* counted = entry;
  /* Threads have their control blocks in different pages. */
  uintptr_t self;
  __asm__("mov %%fs:0, %0" : "=r"(self));
  __atomic_fetch_add(&counted->hits[(self >> 12) % REPROBE_TABLE_SHARDS][0], 1, __ATOMIC_RELAXED);
}
