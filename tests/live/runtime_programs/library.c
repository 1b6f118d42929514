/* A library that is opened late, with a probe that it passes only while its counter is raised. */
#define _SDT_HAS_SEMAPHORES 1
#include <sys/sdt.h>

__extension__ unsigned short lib_call_semaphore __attribute__((unused, section(".probes")));

int library_call(int a) {
  if (__builtin_expect(*(volatile unsigned short*)&lib_call_semaphore, 0))
    DTRACE_PROBE1(lib, call, a);
  return a + 1;
}

int library_semaphore(void) { return *(volatile unsigned short*)&lib_call_semaphore; }
