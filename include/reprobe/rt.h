/* Handlers in the process for the probes of files with sleds of the kind slot (`reprobe sled
 * --kind=slot`): a hit costs a call and no privilege. x86-64, System V ABI. docs/runtime.md.
 *
 *   static void on_request(const struct reprobe_rt_hit* hit, void* context) {
 *     struct reprobe_rt_value length;
 *     if (reprobe_rt_argument(hit, 1, &length) == 0) *(unsigned long*)context += length.bits;
 *   }
 *   struct reprobe_rt_attachment* a =
 *       reprobe_rt_attach("app:request", REPROBE_RT_FULL, on_request, &total);
 *   ...
 *   reprobe_rt_detach(a);  // on_request is in no thread any more
 *
 * Functions that can fail give 0 or a negative errno value; those that give a pointer set errno.
 * Signal handlers may call the functions that are marked so. */
#ifndef REPROBE_RT_H
#define REPROBE_RT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A probe of a loaded object. It stays valid as long as the process; `attachable` is 0 once the
 * object was unloaded. */
struct reprobe_rt_probe {
  const char* object; /* path as the dynamic linker knows it; "" for the program */
  const char* provider;
  const char* name;
  const char* arguments; /* as in the note: "8@%rdi -4@$1" */
  const void* site;
  unsigned argument_count;
  int attachable;
};

/* Registers at the site, by their numbers in instructions: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi,
 * r8 to r15. */
struct reprobe_rt_registers {
  uint64_t general[16];
  uint64_t flags;
};

struct reprobe_rt_hit {
  const struct reprobe_rt_probe* probe;
  const struct reprobe_rt_registers* registers;
  const void* state; /* of REPROBE_RT_FULL: what XSAVEC wrote; 0 otherwise */
};

/* A handler runs in the thread that hit the probe, before that goes on. While it runs, probes that
 * this thread hits are counted (reprobe_rt_nested) and call nobody. It must not throw, and calls
 * reprobe_rt_leave() before it leaves by longjmp. */
typedef void (*reprobe_rt_handler)(const struct reprobe_rt_hit* hit, void* context);

enum reprobe_rt_class {
  /* The handler and all that it calls use general registers only: it is compiled with
   * -mgeneral-regs-only, and calls nothing of other libraries. What it finds in the others it
   * leaves there. */
  REPROBE_RT_GENERAL = 0,
  /* Any code: x87, SSE, AVX and what else the processor has is saved around it (XSAVEC). */
  REPROBE_RT_FULL = 1
};

struct reprobe_rt_attachment;

/* `glob`: "provider:name", with * ? and [ ]. Also attaches to matching probes of objects that are
 * found later (reprobe_rt_refresh). Null: EINVAL, ENOMEM, EAGAIN (a signal handler or handler
 * called it while the thread was in one of these functions), or why the slots cannot be written. */
struct reprobe_rt_attachment* reprobe_rt_attach(const char* glob, enum reprobe_rt_class handlers,
                                                reprobe_rt_handler handler, void* context);

/* Sites that it is attached to now. */
size_t reprobe_rt_attached(const struct reprobe_rt_attachment* attachment);

/* No hit that begins later calls the handler. Waits until no thread is inside of it any more, but
 * for the caller where it is called from a handler: there it does not wait (a handler that waits
 * for another thread's could wait for ever), as reprobe_rt_detach_soon(). -EAGAIN as above. */
int reprobe_rt_detach(struct reprobe_rt_attachment* attachment);
int reprobe_rt_detach_soon(struct reprobe_rt_attachment* attachment);

/* Looks for objects that came or went. All functions above do; a program that opens libraries
 * later calls it, or has a thread do it (reprobe_rt_follow). */
int reprobe_rt_refresh(void);
/* Starts one thread that looks every `milliseconds`, 1 or more. */
int reprobe_rt_follow(unsigned milliseconds);

/* Calls `visit` with each probe that is known, until it gives another value than 0, and gives that.
 * Async-signal-safe: takes no lock; after reprobe_rt_refresh() it knows what is loaded. */
int reprobe_rt_each(int (*visit)(const struct reprobe_rt_probe* probe, void* context),
                    void* context);

/* The argument, by its place from 0 on, extended to 64 bits as its sign says; of a float the bits.
 * Gives -ERANGE where there is none, -ENOTSUP where it is not understood. One in memory is read as
 * the program would read it. Async-signal-safe; to be called in the handler only. */
struct reprobe_rt_value {
  uint64_t bits;
  int size; /* bytes: 1, 2, 4 or 8 */
  int is_signed;
  int is_float;
};
int reprobe_rt_argument(const struct reprobe_rt_hit* hit, unsigned number,
                        struct reprobe_rt_value* value);

/* Hits of the process that called no handler, because their thread was in one. */
uint64_t reprobe_rt_nested(void);

/* The thread is in no handler any more: before longjmp or the like. Async-signal-safe. */
void reprobe_rt_leave(void);

/* Does a forked child keep what is attached? It does, unless this says otherwise. */
void reprobe_rt_fork_keeps(int keeps);

#ifdef __cplusplus
}
#endif

#endif
