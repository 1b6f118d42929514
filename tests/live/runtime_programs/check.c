/* What handlers see, and that the program sees nothing of them: app.c's probes, with the runtime
 * linked in. Prints "ok" and the number of checks, or each check that did not hold. The argument is
 * a library with sleds, opened while handlers are subscribed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define main app_main
#include "app.c"
#undef main
#include "handlers.h"

static unsigned failed, passed;
static void check(int good, const char* what, long found, long expected) {
  if (good) {
    ++passed;
    return;
  }
  ++failed;
  printf("FAILED: %s: found %ld, expected %ld\n", what, found, expected);
}
static void equal(const char* what, long found, long expected) {
  check(found == expected, what, found, expected);
}
#define EQUAL(what, found, expected) equal(what, (long)(found), (long)(expected))

enum { PASSES = 1000 };
static char printed[64];

/* One run of app.c's main; what it prints stays the same. */
static void pass(void) {
  char text[sizeof printed];
  fflush(stdout);
  FILE* const real = stdout;
  FILE* const memory = fmemopen(text, sizeof text, "w");
  stdout = memory;
  char* argv[] = {"app", "1000", 0};
  app_main(2, argv);
  fclose(memory);
  stdout = real;
  if (printed[0] == 0) strcpy(printed, text);
  check(strcmp(printed, text) == 0, "what the program computes", 0, 0);
}

/* What the arguments of a probe add up to, computed from app.c's text. */
static void expect(const char* name, enum reprobe_rt_class handlers) {
  char glob[64];
  struct sums s;
  memset(&s, 0, sizeof s);
  snprintf(glob, sizeof glob, "app:%s", name);
  struct reprobe_rt_attachment* a = reprobe_rt_attach(glob, handlers, add_up, &s);
  EQUAL("attached", a != 0 && reprobe_rt_attached(a) >= 1, 1);
  pass();
  EQUAL("detached", reprobe_rt_detach(a), 0);
  const struct sums before = s;
  pass();
  EQUAL("hits after detach", s.hits, before.hits);
  long sum[MOST] = {0};
  long hits = PASSES;
  for (long i = 0; i < PASSES; ++i) {
    uint64_t bits;
    uint32_t half;
    const double x = (double)i / 3;
    const float y = (float)i;
    if (strcmp(name, "work") == 0) {
      sum[0] += -i, sum[1] += (int)i, sum[2] += (short)(i * 7);
    } else if (strcmp(name, "leaf") == 0) {
      sum[0] += i, sum[1] += i + 3;
    } else if (strcmp(name, "flags") == 0) {
      sum[0] += (i & 7) - 1 + i;
      hits = 3 * PASSES;
    } else if (strcmp(name, "caller") == 0) {
      sum[0] += i, sum[1] += 2;
    } else if (strcmp(name, "tail") == 0) {
      sum[0] += i;
    } else if (strcmp(name, "memory") == 0) {
      sum[0] += table[i & 7], sum[1] += i & 7, sum[2] += i & 7, sum[4] += 77;
    } else {
      memcpy(&bits, &x, sizeof bits);
      memcpy(&half, &y, sizeof half);
      sum[0] += (long)bits, sum[1] += half;
    }
  }
  EQUAL(glob, s.hits, hits);
  EQUAL("arguments that cannot be read", s.errors, 0);
  for (int i = 0; i < MOST; ++i) {
    if (strcmp(name, "memory") == 0 && i == 3) continue;  // where the text is
    EQUAL(glob, s.of[i], sum[i]);
  }
  if (strcmp(name, "work") == 0) {
    EQUAL("size of long", s.size[0], -8);
    EQUAL("size of int", s.size[1], -4);
    EQUAL("size of short", s.size[2], -2);
  }
}

/* A handler that leaves nothing as it was. */
static void trample(const struct reprobe_rt_hit* hit, void* context) {
  __asm__ volatile(
      "fninit\n fld1\n fld1\n"
      "pxor %%xmm0,%%xmm0\n pxor %%xmm1,%%xmm1\n pxor %%xmm2,%%xmm2\n pxor %%xmm7,%%xmm7\n"
      "pcmpeqd %%xmm8,%%xmm8\n pcmpeqd %%xmm15,%%xmm15\n std\n cld\n"
      "cmp %%rsp,%%rsp\n" ::
          : "xmm0", "xmm1", "xmm2", "xmm7", "xmm8", "xmm15", "cc", "st", "memory");
  __asm__ volatile("fstp %%st(0)\n fstp %%st(0)\n" ::: "st");
  errno = 12345;
  char text[64];
  snprintf(text, sizeof text, "%f %p", 1.5, (const void*)hit);
  ++*(uint64_t*)context;
}

/* Every register, the flags, the direction flag and the red zone around one site. */
struct all {
  uint64_t general[16];
  uint64_t flags;
  uint64_t below[16];
  unsigned char vector[16][16];
};
void around_site(struct all* all, uint64_t flags);
__asm__(
    ".text\n.globl around_site\n.type around_site,@function\naround_site:\n"
    ".cfi_startproc\n"
    "push %rbx\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset rbx,0\n"
    "push %rbp\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset rbp,0\n"
    "push %r12\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset r12,0\n"
    "push %r13\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset r13,0\n"
    "push %r14\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset r14,0\n"
    "push %r15\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset r15,0\n"
    "push %rdi\n.cfi_adjust_cfa_offset 8\n"
    "push %rsi\n.cfi_adjust_cfa_offset 8\n"
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
    "movdqu 264+16*\\n(%rdi),%xmm\\n\n"
    "movq 136+8*\\n(%rdi),%rax\n movq %rax,-128+8*\\n(%rsp)\n"
    ".endr\n"
    "mov (%rdi),%rax\n mov 8(%rdi),%rcx\n mov 16(%rdi),%rdx\n mov 24(%rdi),%rbx\n"
    "mov 40(%rdi),%rbp\n mov 48(%rdi),%rsi\n mov 64(%rdi),%r8\n mov 72(%rdi),%r9\n"
    "mov 80(%rdi),%r10\n mov 88(%rdi),%r11\n mov 96(%rdi),%r12\n mov 104(%rdi),%r13\n"
    "mov 112(%rdi),%r14\n mov 120(%rdi),%r15\n mov 56(%rdi),%rdi\n"
    /* popf writes nothing below the stack pointer. */
    "popfq\n.cfi_adjust_cfa_offset -8\n"
    "990: nop\n"
    "lea -256(%rsp),%rsp\n.cfi_adjust_cfa_offset 256\n"
    "pushfq\n.cfi_adjust_cfa_offset 8\n cld\n"
    "push %rdi\n.cfi_adjust_cfa_offset 8\n"
    "mov 272(%rsp),%rdi\n"
    "mov %rax,(%rdi)\n mov %rcx,8(%rdi)\n mov %rdx,16(%rdi)\n mov %rbx,24(%rdi)\n"
    "mov %rbp,40(%rdi)\n mov %rsi,48(%rdi)\n mov %r8,64(%rdi)\n mov %r9,72(%rdi)\n"
    "mov %r10,80(%rdi)\n mov %r11,88(%rdi)\n mov %r12,96(%rdi)\n mov %r13,104(%rdi)\n"
    "mov %r14,112(%rdi)\n mov %r15,120(%rdi)\n pop %rax\n.cfi_adjust_cfa_offset -8\n"
    "mov %rax,56(%rdi)\n pop %rax\n.cfi_adjust_cfa_offset -8\n mov %rax,128(%rdi)\n"
    "lea 256(%rsp),%rsp\n.cfi_adjust_cfa_offset -256\n"
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
    "movdqu %xmm\\n,264+16*\\n(%rdi)\n"
    ".endr\n"
    /* The lowest two words of the red zone lay below the one popped; 15 are left in it. */
    ".irp n,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
    "movq -136+8*\\n(%rsp),%rax\n movq %rax,136+8*\\n(%rdi)\n"
    ".endr\n"
    "pop %rdi\n.cfi_adjust_cfa_offset -8\n"
    "pop %r15\n.cfi_adjust_cfa_offset -8\n.cfi_restore r15\n"
    "pop %r14\n.cfi_adjust_cfa_offset -8\n.cfi_restore r14\n"
    "pop %r13\n.cfi_adjust_cfa_offset -8\n.cfi_restore r13\n"
    "pop %r12\n.cfi_adjust_cfa_offset -8\n.cfi_restore r12\n"
    "pop %rbp\n.cfi_adjust_cfa_offset -8\n.cfi_restore rbp\n"
    "pop %rbx\n.cfi_adjust_cfa_offset -8\n.cfi_restore rbx\n"
    "ret\n.cfi_endproc\n.size around_site,.-around_site\n"
    ".pushsection .note.stapsdt,\"\",\"note\"\n.balign 4\n.4byte 992f-991f,994f-993f,3\n"
    "991: .asciz \"stapsdt\"\n992: .balign 4\n993: .8byte 990b\n.8byte _.stapsdt.base\n.8byte 0\n"
    ".asciz \"check\"\n.asciz \"all\"\n"
    ".asciz \"8@%rax 8@%rcx 8@%rdx 8@%rbx -1@%ah 4@%r15d 8@-8(%rsp) 8@%xmm15\"\n"
    "994: .balign 4\n.popsection\n");

static void registers(enum reprobe_rt_class handlers, reprobe_rt_handler handler,
                      const char* what) {
  uint64_t hits = 0;
  struct reprobe_rt_attachment* a = reprobe_rt_attach("check:all", handlers, handler, &hits);
  for (unsigned round = 0; round < 64; ++round) {
    struct all all, before;
    for (size_t i = 0; i < sizeof all / 8; ++i)
      ((uint64_t*)&all)[i] = 0x9e3779b97f4a7c15U * (i + 1 + 100 * round);
    /* CF PF AF ZF SF OF by the bits of the round, DF where handlers are not libc's. */
    const uint64_t flags = 2 | (round & 1) | (round & 2) << 1 | (round & 4) << 2 |
                           (round & 8) << 3 | (round & 16) << 3 | (round & 32) << 6 |
                           (round % 3 == 0 ? 0x400 : 0);
    before = all;
    errno = 77;
    __asm__ volatile("" ::: "memory");
    around_site(&all, flags);
    EQUAL("errno", errno, 77);
    EQUAL("flags", all.flags & 0xcd5, flags & 0xcd5);
    for (int i = 0; i < 16; ++i) {
      if (i != 4) EQUAL(what, all.general[i], before.general[i]);
      if (i != 0) EQUAL("the red zone", all.below[i], before.below[i]);
    }
    EQUAL("vector registers", memcmp(all.vector, before.vector, sizeof all.vector), 0);
  }
  EQUAL("hits", hits, a == 0 ? 0 : 64);
  if (a != 0) reprobe_rt_detach(a);
}

static void values(const struct reprobe_rt_hit* hit, void* context) {
  uint64_t* found = context;
  for (unsigned i = 0; i < 8; ++i) {
    struct reprobe_rt_value value = {0, 0, 0, 0};
    reprobe_rt_argument(hit, i, &value);
    found[i] = value.bits;
  }
  found[8] = hit->registers->flags;
}

static void forms(enum reprobe_rt_class handlers) {
  uint64_t found[9] = {0};
  struct all all;
  for (size_t i = 0; i < sizeof all / 8; ++i) ((uint64_t*)&all)[i] = 0x8182838485868788U * (i + 1);
  const struct all before = all;
  struct reprobe_rt_attachment* a = reprobe_rt_attach("check:all", handlers, values, found);
  around_site(&all, 0x8c3);
  reprobe_rt_detach(a);
  for (int i = 0; i < 4; ++i) EQUAL("general register", found[i], before.general[i]);
  EQUAL("%ah", found[4], (int8_t)(before.general[0] >> 8));
  EQUAL("%r15d", found[5], (uint32_t)before.general[15]);
  EQUAL("-8(%rsp)", found[6], 0x8c3);
  uint64_t low;
  memcpy(&low, before.vector[15], sizeof low);
  EQUAL("%xmm15", found[7], low);
  EQUAL("flags", found[8] & 0xcd5, 0x8c3 & 0xcd5);
}

static int names_found;
static int visit(const struct reprobe_rt_probe* probe, void* context) {
  (void)context;
  if (strcmp(probe->provider, "app") == 0 && probe->attachable) ++names_found;
  return 0;
}

/* Inside of a handler another probe is hit: it calls nobody. */
static void hits_another(const struct reprobe_rt_hit* hit, void* context) {
  (void)hit;
  ++*(uint64_t*)context;
  work(1, 2, 3);
}

static jmp_buf way_out;
static void jumps(const struct reprobe_rt_hit* hit, void* context) {
  (void)hit;
  ++*(uint64_t*)context;
  reprobe_rt_leave();
  longjmp(way_out, 1);
}

static int depth;
static void unwinds(const struct reprobe_rt_hit* hit, void* context) {
  (void)hit;
  void* frames[64];
  const int count = backtrace(frames, 64);
  for (int i = 0; i < count; ++i) {
    Dl_info info;
    const int known = dladdr(frames[i], &info) && info.dli_sname != 0;
    if (known && strcmp(info.dli_sname, context) == 0) depth = i;
  }
}

static uint64_t counted(const char* glob, void (*run)(void)) {
  uint64_t hits = 0;
  struct reprobe_rt_attachment* a = reprobe_rt_attach(glob, REPROBE_RT_FULL, count, &hits);
  run();
  reprobe_rt_detach(a);
  return hits;
}
static void some_work(void) {
  for (int i = 0; i < 10; ++i) work(i, 1, 1);
}

static struct reprobe_rt_attachment* itself;
static void detaches(const struct reprobe_rt_hit* hit, void* context) {
  (void)hit;
  ++*(uint64_t*)context;
  EQUAL("detach in a handler", reprobe_rt_detach(itself), 0);
}

static void forks(int keeps) {
  reprobe_rt_fork_keeps(keeps);
  uint64_t hits = 0;
  struct reprobe_rt_attachment* a = reprobe_rt_attach("app:work", REPROBE_RT_GENERAL, count, &hits);
  const pid_t child = fork();
  some_work();
  if (child == 0) _exit((int)hits);
  int status = 0;
  waitpid(child, &status, 0);
  EQUAL("hits of the child", WEXITSTATUS(status), keeps ? 10 : 0);
  EQUAL("hits of the parent", hits, 10);
  reprobe_rt_detach(a);
}

static void* first_hit(void* context) {
  (void)context;
  some_work();
  return 0;
}

static void library(const char* path) {
  uint64_t hits = 0;
  struct reprobe_rt_attachment* a = reprobe_rt_attach("lib:*", REPROBE_RT_FULL, count, &hits);
  EQUAL("sites of a library that is not there", reprobe_rt_attached(a), 0);
  for (int round = 1; round < 4; ++round) {
    void* handle = dlopen(path, RTLD_NOW);
    if (handle == 0) {
      check(0, dlerror(), 0, 0);
      return;
    }
    EQUAL("refresh", reprobe_rt_refresh(), 0);
    int (*call)(int) = (int (*)(int))dlsym(handle, "library_call");
    int (*semaphore)(void) = (int (*)(void))dlsym(handle, "library_semaphore");
    EQUAL("the counter of the probe", semaphore(), 1);
    uint64_t more = 0;
    struct reprobe_rt_attachment* b = reprobe_rt_attach("lib:call", REPROBE_RT_FULL, count, &more);
    EQUAL("the counter with two attachments", semaphore(), 2);
    reprobe_rt_detach(b);
    EQUAL("the counter with one again", semaphore(), 1);
    for (int i = 0; i < 5; ++i) call(i);
    EQUAL("hits of a library opened later", hits, 5 * round);
    dlclose(handle);
    EQUAL("refresh", reprobe_rt_refresh(), 0);
  }
  reprobe_rt_detach(a);
}

int main(int argc, char** argv) {
  reprobe_rt_refresh();
  reprobe_rt_each(visit, 0);
  EQUAL("attachable probes", names_found, 7);
  pass();
  for (int handlers = 0; handlers < 2; ++handlers) {
    const char* const names[] = {"work", "leaf", "flags", "caller", "tail", "memory", "floats"};
    for (int i = 0; i < 7; ++i) expect(names[i], (enum reprobe_rt_class)handlers);
    forms((enum reprobe_rt_class)handlers);
  }
  registers(REPROBE_RT_GENERAL, count, "registers, general");
  registers(REPROBE_RT_FULL, trample, "registers, full");
  uint64_t outer = 0, inner = 0;
  struct reprobe_rt_attachment* a =
      reprobe_rt_attach("app:tail", REPROBE_RT_FULL, hits_another, &outer);
  struct reprobe_rt_attachment* b = reprobe_rt_attach("app:work", REPROBE_RT_FULL, count, &inner);
  const uint64_t nested = reprobe_rt_nested();
  for (int i = 0; i < 9; ++i) tail(i);
  EQUAL("outer hits", outer, 9);
  EQUAL("hits in a handler", inner, 0);
  EQUAL("nested hits are counted", reprobe_rt_nested() - nested, 9);
  reprobe_rt_detach(a);
  some_work();
  EQUAL("one of two detached", inner, 10);
  reprobe_rt_detach(b);
  uint64_t jumped = 0;
  a = reprobe_rt_attach("app:tail", REPROBE_RT_FULL, jumps, &jumped);
  for (volatile int i = 0; i < 7; ++i) {
    if (setjmp(way_out) == 0) tail(i);
  }
  EQUAL("left by longjmp", jumped, 7);
  EQUAL("detach after longjmp", reprobe_rt_detach(a), 0);
  a = reprobe_rt_attach("app:leaf", REPROBE_RT_FULL, unwinds, "unwound");
  extern long unwound(long) __attribute__((visibility("default")));
  unwound(5);
  check(depth > 1, "the caller is in the backtrace", depth, 4);
  reprobe_rt_detach(a);
  EQUAL("counted", counted("app:w*", some_work), 10);
  EQUAL("counted by another glob", counted("a?[op]:[!a-v]ork", some_work), 10);
  EQUAL("counted by a glob of others", counted("app:wor", some_work), 0);
  uint64_t once = 0;
  itself = reprobe_rt_attach("app:work", REPROBE_RT_FULL, detaches, &once);
  some_work();
  EQUAL("a handler detached itself", once, 1);
  forks(1);
  forks(0);
  reprobe_rt_fork_keeps(1);
  uint64_t of_threads = 0;
  a = reprobe_rt_attach("app:work", REPROBE_RT_GENERAL, count, &of_threads);
  for (int i = 0; i < 200; ++i) {
    pthread_t thread;
    pthread_create(&thread, 0, first_hit, 0);
    pthread_join(thread, 0);
  }
  EQUAL("hits of threads created while attached", of_threads, 2000);
  reprobe_rt_detach(a);
  EQUAL("no glob", reprobe_rt_attach("app", REPROBE_RT_FULL, count, &outer) == 0 && errno == EINVAL,
        1);
  if (argc > 1) library(argv[1]);
  if (failed == 0) printf("ok %u\n", passed);
  return failed != 0;
}

__attribute__((noinline, visibility("default"))) long unwound(long a) {
  const long result = leaf(a);
  __asm__ volatile("" ::: "memory");
  return result + 1;
}
