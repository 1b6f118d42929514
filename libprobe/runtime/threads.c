/* Which threads are in a handler. A thread has a record from its first hit to its end; who detaches
 * looks at all of them. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "internal.h"

struct rt_thread* rt_threads;
static pthread_key_t at_exit_of_thread;

int rt_thread_id(void) { return (int)syscall(SYS_gettid); }

static void end_pass(struct rt_thread* thread) {
  __atomic_store_n(&thread->calls, 0, __ATOMIC_RELEASE);
}

static void thread_ends(void* record) {
  struct rt_thread* thread = record;
  rt_self = 0;
  end_pass(thread);
  __atomic_store_n(&thread->tid, 0, __ATOMIC_RELEASE);
}

static struct rt_thread* claim(int tid) {
  struct rt_thread* thread = __atomic_load_n(&rt_threads, __ATOMIC_ACQUIRE);
  for (; thread != 0; thread = thread->next) {
    int none = 0;
    if (__atomic_compare_exchange_n(&thread->tid, &none, tid, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_RELAXED))
      return thread;
  }
  /* A page of them; the first is this thread's. */
  const size_t size = 4096;
  struct rt_thread* fresh =
      mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (fresh == MAP_FAILED) return 0;
  const unsigned count = (unsigned)(size / sizeof *fresh);
  for (unsigned i = 0; i + 1 < count; ++i) fresh[i].next = &fresh[i + 1];
  fresh->tid = tid;
  struct rt_thread* head = __atomic_load_n(&rt_threads, __ATOMIC_ACQUIRE);
  do {
    fresh[count - 1].next = head;
  } while (!__atomic_compare_exchange_n(&rt_threads, &head, fresh, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE));
  return fresh;
}

/* A signal handler may come between, and register the thread itself. */
struct rt_thread* rt_register_thread(void) {
  struct rt_thread* thread = claim(rt_thread_id());
  if (thread == 0) return 0;
  if (rt_self != 0) {
    __atomic_store_n(&thread->tid, 0, __ATOMIC_RELEASE);
    return rt_self;
  }
  rt_self = thread;
  pthread_setspecific(at_exit_of_thread, thread);
  return thread;
}

bool rt_in_handler(void) { return rt_self != 0 && rt_self->calls != 0; }

bool rt_on_signal_stack(void) {
  stack_t stack;
  return sigaltstack(0, &stack) == 0 && (stack.ss_flags & SS_ONSTACK) != 0;
}

void rt_barrier_for_all(void) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (rt_needs_fence) return;
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0) return;
  /* A child of fork or clone that nobody told us of is not registered. */
  syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
  syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
}

static bool is_alive(int tid) {
  return syscall(SYS_tgkill, getpid(), tid, 0) == 0 || errno != ESRCH;
}

bool rt_is_read(const struct rt_calls* calls) {
  const struct rt_thread* thread = __atomic_load_n(&rt_threads, __ATOMIC_ACQUIRE);
  for (; thread != 0; thread = thread->next)
    if (__atomic_load_n(&thread->calls, __ATOMIC_ACQUIRE) == calls) return true;
  return false;
}

/* A thread that ended in a handler, by exit of the thread alone, never says that it left. */
void rt_forget_dead_threads(void) {
  struct rt_thread* thread = __atomic_load_n(&rt_threads, __ATOMIC_ACQUIRE);
  for (; thread != 0; thread = thread->next) {
    const int tid = __atomic_load_n(&thread->tid, __ATOMIC_ACQUIRE);
    if (tid != 0 && !is_alive(tid)) end_pass(thread);
  }
}

uint64_t reprobe_rt_nested(void) {
  uint64_t sum = 0;
  const struct rt_thread* thread = __atomic_load_n(&rt_threads, __ATOMIC_ACQUIRE);
  for (; thread != 0; thread = thread->next)
    sum += __atomic_load_n(&thread->nested, __ATOMIC_RELAXED);
  return sum;
}

/* In a child of fork: only this thread is there. */
void rt_forget_other_threads(void) {
  for (struct rt_thread* thread = rt_threads; thread != 0; thread = thread->next) {
    if (thread == rt_self) {
      thread->tid = rt_thread_id();
      continue;
    }
    end_pass(thread);
    thread->tid = 0;
  }
  if (!rt_needs_fence) syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
}

void rt_start_threads(void) {
  pthread_key_create(&at_exit_of_thread, thread_ends);
  rt_needs_fence = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) != 0 ||
                   syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) != 0;
}
