/* What happens at a hit. Compiled with general registers only. */
#include "libprobe/agent/counting.h"

#include <sys/syscall.h>

struct reprobe_table* reprobe_agent_table;

/* 0: the thread has none yet; else the number of its row and 1. */
static __thread uint32_t row __attribute__((tls_model("initial-exec")));
static __thread uint32_t thread_number __attribute__((tls_model("initial-exec")));
static uint32_t process_number;

static long plain_syscall(long number) {
  long result;
  __asm__ volatile("syscall" : "=a"(result) : "a"(number) : "rcx", "r11", "memory");
  return result;
}

void reprobe_agent_new_process(void) {
  row = 0;
  thread_number = 0;
  process_number = (uint32_t)plain_syscall(SYS_getpid);
}

__attribute__((noinline, cold)) static uint32_t take_row(void) {
  const uint32_t taken = __atomic_fetch_add(&reprobe_agent_table->rows, 1, __ATOMIC_RELAXED);
  row = taken < REPROBE_TABLE_ROWS - 1 ? taken + 1 : REPROBE_TABLE_ROWS;
  return row;
}

/* A row that is the thread's alone needs no locked instruction: that would wait for all that the
 * thunk has stored. */
static void add(uint32_t entry) {
  uint32_t mine = row;
  if (__builtin_expect(mine == 0, 0)) mine = take_row();
  uint64_t* counter = &reprobe_agent_table->hits[mine - 1][entry];
  if (__builtin_expect(mine != REPROBE_TABLE_ROWS, 1)) {
    __atomic_store_n(counter, *counter + 1, __ATOMIC_RELAXED);
  } else {
    __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
  }
}

static uint32_t number_of(const struct reprobe_table_entry* entry) {
  return (uint32_t)(entry - reprobe_agent_table->entry);
}

void reprobe_agent_count(const struct reprobe_rt_hit* hit, void* entry) {
  (void)hit;
  add(number_of(entry));
}

void reprobe_agent_trace(const struct reprobe_rt_hit* hit, void* entry) {
  const uint64_t time = __builtin_ia32_rdtsc();
  struct reprobe_table* table = reprobe_agent_table;
  add(number_of(entry));
  const uint64_t place = __atomic_fetch_add(&table->events, 1, __ATOMIC_RELAXED);
  if (place >= REPROBE_TABLE_EVENTS) return;
  if (thread_number == 0) thread_number = (uint32_t)plain_syscall(SYS_gettid);
  struct reprobe_table_event* event = &table->event[place];
  event->time = time;
  event->entry = number_of(entry);
  event->process = process_number;
  event->thread = thread_number;
  for (unsigned i = 0; i < hit->probe->argument_count && i < REPROBE_TABLE_ARGUMENTS; ++i) {
    struct reprobe_rt_value value = {0, 0, 0, 0};
    if (reprobe_rt_argument(hit, i, &value) != 0) break;
    event->argument[i] = value.bits;
    if (value.is_signed) event->is_signed |= (uint8_t)(1U << i);
    event->arguments = (uint8_t)(i + 1);
  }
  __atomic_store_n(&event->ready, 1, __ATOMIC_RELEASE);
}
