/* libreprobe-agent: counts the hits of probes with sleds of the kind slot in a program that knows
 * nothing of it. `reprobe run` sets it up; by hand:
 *
 *   LD_PRELOAD=libreprobe-agent.so REPROBE='provider:name,...' program
 *
 * REPROBE          globs, apart by commas; none: all probes
 * REPROBE_TABLE    file of counts (table.h); none: the counts are printed when the program exits
 * REPROBE_TRACE    not empty: events are written to that file, too
 * REPROBE_FOLLOW   milliseconds between looks for libraries that were opened by their names alone;
 *                  0: none are looked for */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "libprobe/agent/counting.h"

static const char* globs = "*:*";
static struct reprobe_table* table;
static reprobe_rt_handler handler = reprobe_agent_count;
static pid_t first_process;
static long milliseconds_between_looks;
static int prints; /* at the end: nobody else does. The program may clear its environment. */

static struct reprobe_table* map_table(void) {
  const char* path = getenv("REPROBE_TABLE");
  const int fd = path == 0 ? -1 : open(path, O_RDWR | O_CLOEXEC);
  if (path != 0 && fd < 0) {
    fprintf(stderr, "libreprobe-agent: %s: %s\n", path, strerror(errno));
    return 0;
  }
  /* Of most of it no page is ever written. */
  void* at = mmap(0, sizeof(struct reprobe_table), PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_NORESERVE | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);
  if (fd >= 0) close(fd);
  if (at == MAP_FAILED) {
    fprintf(stderr, "libreprobe-agent: no memory for the counts: %s\n", strerror(errno));
    return 0;
  }
  struct reprobe_table* mapped = at;
  if (fd < 0) mapped->magic = REPROBE_TABLE_MAGIC;
  return mapped->magic == REPROBE_TABLE_MAGIC ? mapped : 0;
}

/* The entry of the name, of this process or of another; null where the table is full. Two processes
 * may make one each: who prints adds them up. */
static struct reprobe_table_entry* entry_of(const char* name) {
  const uint32_t used = __atomic_load_n(&table->used, __ATOMIC_ACQUIRE);
  for (uint32_t i = 0; i < used && i < REPROBE_TABLE_ENTRIES; ++i) {
    struct reprobe_table_entry* entry = &table->entry[i];
    if (__atomic_load_n(&entry->ready, __ATOMIC_ACQUIRE) != 0 && strcmp(entry->name, name) == 0)
      return entry;
  }
  const uint32_t number = __atomic_fetch_add(&table->used, 1, __ATOMIC_ACQ_REL);
  if (number >= REPROBE_TABLE_ENTRIES) return 0;
  struct reprobe_table_entry* entry = &table->entry[number];
  memcpy(entry->name, name, strlen(name) + 1); /* attach_one() has looked at its length */
  __atomic_store_n(&entry->ready, 1, __ATOMIC_RELEASE);
  return entry;
}

static int is_wanted(const char* name) {
  char glob[256];
  for (const char* at = globs; *at != 0;) {
    const size_t length = strcspn(at, ",");
    if (length < sizeof glob) {
      memcpy(glob, at, length);
      glob[length] = 0;
      if (fnmatch(glob, name, 0) == 0) return 1;
    }
    at += length + (at[length] == ',');
  }
  return 0;
}

/* Names of probes that have a counter, each once. */
struct known {
  struct known* next;
  char name[];
};
static struct known* known;

static int is_known(const char* name) {
  for (const struct known* k = known; k != 0; k = k->next)
    if (strcmp(k->name, name) == 0) return 1;
  return 0;
}

/* A glob that matches this name and no other. */
static void literal_glob(const char* name, char* glob, size_t size) {
  size_t at = 0;
  for (; *name != 0 && at + 4 < size; ++name) {
    const int special = *name == '*' || *name == '?' || *name == '[';
    if (special) glob[at++] = '[';
    glob[at++] = *name;
    if (special) glob[at++] = ']';
  }
  glob[at] = 0;
}

static int attach_one(const struct reprobe_rt_probe* probe, void* context) {
  (void)context;
  char name[sizeof table->entry[0].name], glob[3 * sizeof name];
  const int length = snprintf(name, sizeof name, "%s:%s", probe->provider, probe->name);
  if (!probe->attachable || length < 0 || (size_t)length >= sizeof name || is_known(name) ||
      !is_wanted(name))
    return 0;
  struct known* k = malloc(sizeof *k + (size_t)length + 1);
  struct reprobe_table_entry* entry = entry_of(name);
  if (k == 0 || entry == 0) {
    free(k);
    return 0;
  }
  memcpy(k->name, name, (size_t)length + 1);
  k->next = known;
  known = k;
  literal_glob(name, glob, sizeof glob);
  if (reprobe_rt_attach(glob, REPROBE_RT_GENERAL, handler, entry) == 0) {
    __atomic_fetch_add(&table->failed, 1, __ATOMIC_RELAXED);
    fprintf(stderr, "libreprobe-agent: %s: %s\n", name, strerror(errno));
  }
  return 0;
}

/* Who opens libraries and who looks for them may be two threads. */
static pthread_mutex_t attaching = PTHREAD_MUTEX_INITIALIZER;

static void attach_all(void) {
  pthread_mutex_lock(&attaching);
  reprobe_rt_refresh();
  reprobe_rt_each(attach_one, 0);
  pthread_mutex_unlock(&attaching);
}

/* Nobody attaches in a child that was just forked. */
static void in_child(void) {
  attaching = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  reprobe_agent_new_process();
}

/* What dlopen.S calls. */
__attribute__((visibility("hidden"))) void* (*reprobe_agent_dlopen)(const char*, int);

static void follow_from_now_on(void);

/* Does the file name a library by its path, so that it does not matter who opens it? */
__attribute__((visibility("hidden"))) int reprobe_agent_opens(const char* file) {
  if (reprobe_agent_dlopen == 0)
    *(void**)&reprobe_agent_dlopen = dlsym(RTLD_NEXT, "dlopen");
  if (table == 0 || file == 0) return 0;
  const int by_path = strchr(file, '/') != 0 && strchr(file, '$') == 0;
  if (!by_path) follow_from_now_on();
  return by_path;
}

__attribute__((visibility("hidden"))) void* reprobe_agent_open(const char* file, int mode) {
  void* opened = reprobe_agent_dlopen(file, mode);
  const int number = errno;
  if (opened != 0) attach_all();
  errno = number;
  return opened;
}

static void* follow(void* unused) {
  (void)unused;
  const long wait = milliseconds_between_looks;
  const struct timespec moment = {wait / 1000, wait % 1000 * 1000000};
  for (;;) {
    nanosleep(&moment, 0);
    attach_all();
  }
  return 0;
}

/* Not before it is needed: a program with a second thread can do less (unshare(2), setns(2), and
 * setresuid(3) after capset(2), which is of the calling thread alone). */
static void follow_from_now_on(void) {
  static int started;
  if (milliseconds_between_looks <= 0 || __atomic_exchange_n(&started, 1, __ATOMIC_RELAXED) != 0)
    return;
  sigset_t all, before;
  pthread_t thread;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  if (pthread_create(&thread, 0, follow, 0) == 0) pthread_detach(thread);
  pthread_sigmask(SIG_SETMASK, &before, 0);
}

__attribute__((constructor)) static void start(void) {
  const char* wanted = getenv("REPROBE");
  const char* wait = getenv("REPROBE_FOLLOW");
  if (wanted != 0 && *wanted != 0) globs = wanted;
  prints = getenv("REPROBE_TABLE") == 0;
  table = reprobe_agent_table = map_table();
  if (table == 0) return;
  const char* trace = getenv("REPROBE_TRACE");
  if (trace != 0 && *trace != 0) handler = reprobe_agent_trace;
  first_process = getpid();
  reprobe_agent_new_process();
  pthread_atfork(0, 0, in_child);
  __atomic_fetch_add(&table->attached, 1, __ATOMIC_RELAXED);
  attach_all();
  milliseconds_between_looks = wait == 0 ? 0 : atol(wait);
}

/* Without a command that prints: this process does, not the children that it forked. */
__attribute__((destructor)) static void end(void) {
  if (table == 0 || !prints || getpid() != first_process) return;
  for (uint32_t i = 0; i < table->used && i < REPROBE_TABLE_ENTRIES; ++i) {
    uint64_t hits = 0;
    for (uint32_t row = 0; row < REPROBE_TABLE_ROWS; ++row) hits += table->hits[row][i];
    fprintf(stderr, "%10llu  %s\n", (unsigned long long)hits, table->entry[i].name);
  }
}
