/* Handlers come and go. All of it happens under one lock with signals blocked; hits never wait. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "internal.h"

struct reprobe_rt_attachment {
  struct reprobe_rt_attachment* next;
  reprobe_rt_handler handler;
  void* context;
  bool full;
  size_t sites;
  int error; /* of the last slot that could not be written */
  char glob[];
};

static struct reprobe_rt_attachment* attachments;
static struct rt_calls* garbage; /* lists that a thread may still read */
static uint64_t unpublishings;
static int owner; /* thread that has the lock */
static sigset_t mask_before;
static bool child_keeps = true;

bool rt_lock(void) {
  const int self = rt_thread_id();
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  for (;;) {
    int none = 0;
    if (__atomic_compare_exchange_n(&owner, &none, self, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
      break;
    if (none == self) {
      pthread_sigmask(SIG_SETMASK, &before, 0);
      return false;
    }
    sched_yield();
  }
  mask_before = before;
  return true;
}

void rt_unlock(void) {
  const sigset_t before = mask_before;
  __atomic_store_n(&owner, 0, __ATOMIC_RELEASE);
  pthread_sigmask(SIG_SETMASK, &before, 0);
}

/* One character of a set: [abc], [a-z], [!abc]. Gives where it ends, or null. */
static const char* match_set(const char* set, char c, bool* matches) {
  bool found = false;
  const bool negated = *set == '!' || *set == '^';
  if (negated) ++set;
  const char* at = set;
  for (; *at != 0 && (*at != ']' || at == set); ++at) {
    if (at[1] == '-' && at[2] != 0 && at[2] != ']') {
      found = found || (*at <= c && c <= at[2]);
      at += 2;
    } else {
      found = found || *at == c;
    }
  }
  *matches = found != negated;
  return *at == 0 ? 0 : at + 1;
}

/* Without recursion: a star takes one more character where what follows does not match. */
static bool matches(const char* glob, const char* text) {
  const char* star = 0;
  const char* retry = 0;
  while (*text != 0) {
    bool good = *glob == *text || *glob == '?';
    const char* next = *glob == 0 ? glob : glob + 1;
    if (*glob == '[') {
      const char* end = match_set(glob + 1, *text, &good);
      if (end != 0) {
        next = end;
      } else {
        good = *text == '[';
      }
    }
    if (*glob == '*') {
      star = ++glob;
      retry = text;
    } else if (good) {
      glob = next;
      ++text;
    } else if (star != 0) {
      glob = star;
      text = ++retry;
    } else {
      return false;
    }
  }
  while (*glob == '*') ++glob;
  return *glob == 0;
}

/* Of "provider:name" both parts are globs. */
static bool wants(const struct reprobe_rt_attachment* attachment, const struct rt_site* site) {
  const char* colon = strchr(attachment->glob, ':');
  char provider[256];
  const size_t length = (size_t)(colon - attachment->glob);
  if (length >= sizeof provider) return false;
  memcpy(provider, attachment->glob, length);
  provider[length] = 0;
  return matches(provider, site->probe.provider) && matches(colon + 1, site->probe.name);
}

/* The slot's calls without those of `without`, and with one more. */
static struct rt_calls* other_calls(const struct rt_calls* old,
                                    const struct reprobe_rt_attachment* without,
                                    const struct rt_call* more) {
  const unsigned most = (old == 0 ? 0 : old->count) + (more == 0 ? 0 : 1);
  struct rt_calls* calls = rt_allocate(sizeof *calls + most * sizeof calls->call[0]);
  if (calls == 0) return 0;
  for (unsigned i = 0; old != 0 && i < old->count; ++i) {
    if (old->call[i].attachment != without) calls->call[calls->count++] = old->call[i];
  }
  if (more != 0) calls->call[calls->count++] = *more;
  for (unsigned i = 0; i < calls->count; ++i) calls->full = calls->full || calls->call[i].full;
  return calls;
}

/* Makes the calls those of the slot. */
static int publish(struct rt_site* first, struct rt_calls* calls) {
  struct rt_calls* old = first->calls;
  if (calls->count == 0) {
    rt_release(calls);
    calls = 0;
  }
  __atomic_store_n(&first->calls, calls, __ATOMIC_SEQ_CST);
  if (old != 0) {
    old->unpublished = unpublishings;
    old->next_garbage = garbage;
    garbage = old;
  }
  struct rt_slot* slot = first->slot;
  if (slot == 0) return 0;
  const int error = rt_open_slots(first->object);
  if (error != 0) return error;
  rt_set_slot(slot, first, calls == 0 ? 0 : calls->count);
  return 0;
}

/* Several attachments, and the kernel's, add up. */
static void raise_semaphore(const struct rt_site* site, int by) {
  if (site->semaphore != 0) __atomic_fetch_add(site->semaphore, (uint16_t)by, __ATOMIC_RELAXED);
}

static void attach_to(struct reprobe_rt_attachment* attachment, struct rt_site* site) {
  if (site->slot == 0 || !wants(attachment, site)) return;
  const struct rt_call call = {site, attachment->handler, attachment->context, attachment,
                               attachment->full};
  struct rt_calls* calls = other_calls(site->first->calls, 0, &call);
  const int error = calls == 0 ? -ENOMEM : publish(site->first, calls);
  if (calls != 0) raise_semaphore(site, 1);
  if (error != 0) {
    attachment->error = error;
  } else {
    ++attachment->sites;
  }
}

static void found(struct rt_site* site) {
  for (struct reprobe_rt_attachment* a = attachments; a != 0; a = a->next) attach_to(a, site);
}

static void close_all(void) {
  const struct rt_object* done = 0;
  for (struct rt_site* site = rt_sites; site != 0; site = site->next) {
    if (site->object == done) continue;
    done = site->object;
    if (site->object->loaded) rt_close_slots(site->object);
  }
}

static bool has_calls_of(const struct rt_calls* calls, const struct reprobe_rt_attachment* a) {
  for (unsigned i = 0; calls != 0 && i < calls->count; ++i)
    if (calls->call[i].attachment == a) return true;
  return false;
}

/* Gives 0, or -ENOMEM: the attachment stays. */
static int take_out(struct reprobe_rt_attachment* attachment) {
  for (struct rt_site* site = rt_sites; site != 0; site = site->next) {
    if (site->first != site || !has_calls_of(site->calls, attachment)) continue;
    struct rt_calls* calls = other_calls(site->calls, attachment, 0);
    if (calls == 0) return -ENOMEM;
    const struct rt_calls* old = site->calls;
    for (unsigned i = 0; i < old->count; ++i)
      if (old->call[i].attachment == attachment) raise_semaphore(old->call[i].site, -1);
    publish(site, calls);
  }
  for (struct reprobe_rt_attachment** at = &attachments; *at != 0; at = &(*at)->next) {
    if (*at != attachment) continue;
    *at = attachment->next;
    break;
  }
  return 0;
}

struct reprobe_rt_attachment* reprobe_rt_attach(const char* glob, enum reprobe_rt_class handlers,
                                                reprobe_rt_handler handler, void* context) {
  const size_t length = glob == 0 ? 0 : strlen(glob);
  if (length == 0 || strchr(glob, ':') == 0 || handler == 0) {
    errno = EINVAL;
    return 0;
  }
  if (!rt_lock()) {
    errno = EAGAIN;
    return 0;
  }
  rt_find_objects(found);
  struct reprobe_rt_attachment* attachment = rt_allocate(sizeof *attachment + length + 1);
  int error = attachment == 0 ? -ENOMEM : 0;
  if (attachment != 0) {
    attachment->handler = handler;
    attachment->context = context;
    attachment->full = handlers != REPROBE_RT_GENERAL;
    memcpy(attachment->glob, glob, length + 1);
    attachment->next = attachments;
    attachments = attachment;
    for (struct rt_site* site = rt_sites; site != 0; site = site->next) attach_to(attachment, site);
    close_all();
    error = attachment->error;
    if (error != 0 && take_out(attachment) == 0) rt_release(attachment);
  }
  rt_unlock();
  if (error != 0) {
    errno = -error;
    return 0;
  }
  return attachment;
}

size_t reprobe_rt_attached(const struct reprobe_rt_attachment* attachment) {
  return __atomic_load_n(&attachment->sites, __ATOMIC_RELAXED);
}

/* Gives lists back that were unpublished before a barrier that every thread has passed since, and
 * that no thread is in. Is one left that has a call of `mine`? */
static bool release_unread(uint64_t before, const struct reprobe_rt_attachment* mine) {
  bool is_used = false;
  struct rt_calls** at = &garbage;
  while (*at != 0) {
    struct rt_calls* list = *at;
    if (list->unpublished < before && !rt_is_read(list)) {
      *at = list->next_garbage;
      rt_release(list);
    } else {
      is_used = is_used || has_calls_of(list, mine);
      at = &list->next_garbage;
    }
  }
  return is_used;
}

/* Until no thread is in a handler of the attachment. What others unpublish meanwhile has none. */
static void wait_for_threads(uint64_t before, struct reprobe_rt_attachment* attachment) {
  const int error = errno;
  rt_barrier_for_all();
  for (unsigned tries = 0;; ++tries) {
    if (!rt_lock()) continue;
    if (tries % 1000 == 999) rt_forget_dead_threads();
    const bool is_used = release_unread(before, attachment);
    if (!is_used) rt_release(attachment);
    rt_unlock();
    if (!is_used) break;
    if (tries < 100) {
      sched_yield();
    } else {
      const struct timespec moment = {0, 100000};
      nanosleep(&moment, 0);
    }
  }
  errno = error;
}

int reprobe_rt_detach_soon(struct reprobe_rt_attachment* attachment) {
  if (!rt_lock()) return -EAGAIN;
  const int error = take_out(attachment);
  if (error == 0) rt_release(attachment);
  close_all();
  rt_unlock();
  return error;
}

int reprobe_rt_detach(struct reprobe_rt_attachment* attachment) {
  if (rt_in_handler()) return reprobe_rt_detach_soon(attachment);
  if (!rt_lock()) return -EAGAIN;
  const int error = take_out(attachment);
  close_all();
  const uint64_t before = ++unpublishings;
  rt_unlock();
  if (error == 0) wait_for_threads(before, attachment);
  return error;
}

int reprobe_rt_refresh(void) {
  if (!rt_lock()) return -EAGAIN;
  rt_find_objects(found);
  close_all();
  rt_unlock();
  return 0;
}

static void* follow(void* milliseconds) {
  const uintptr_t wait = (uintptr_t)milliseconds;
  const struct timespec moment = {(time_t)(wait / 1000), (long)(wait % 1000) * 1000000};
  for (;;) {
    nanosleep(&moment, 0);
    reprobe_rt_refresh();
  }
  return 0;
}

int reprobe_rt_follow(unsigned milliseconds) {
  if (milliseconds == 0) return -EINVAL;
  /* Signals are the program's. */
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  pthread_t thread;
  const int error = pthread_create(&thread, 0, follow, (void*)(uintptr_t)milliseconds);
  if (error == 0) pthread_detach(thread);
  pthread_sigmask(SIG_SETMASK, &before, 0);
  return -error;
}

void reprobe_rt_fork_keeps(int keeps) { child_keeps = keeps != 0; }

static void before_fork(void) { (void)rt_lock(); }
static void in_parent(void) { rt_unlock(); }
static void in_child(void) {
  /* The thread has another number here. */
  owner = rt_thread_id();
  rt_forget_other_threads();
  while (!child_keeps && attachments != 0 && take_out(attachments) == 0) continue;
  close_all();
  rt_unlock();
}

/* Intel SDM volume 1, 13.2: XSAVEC is bit 1 of EAX of leaf 13, sub-leaf 1; EBX has the bytes of the
 * compacted form of all that is switched on. */
static size_t state_size(void) {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & bit_OSXSAVE) == 0) return 0;
  if (!__get_cpuid_count(13, 1, &a, &b, &c, &d) || (a & 2) == 0) return 0;
  const unsigned legacy_and_header = 576;
  return ((b < legacy_and_header ? legacy_and_header : b) + 63U) / 64 * 64;
}

__attribute__((constructor)) static void start(void) {
  rt_state_size = state_size();
  rt_start_threads();
  pthread_atfork(before_fork, in_parent, in_child);
}
