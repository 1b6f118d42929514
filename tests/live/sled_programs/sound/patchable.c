// build: gcc -O2 -pie -fPIE -fpatchable-function-entry=5
// build: clang-14 -O2 -pie -fPIE -fpatchable-function-entry=5
// build: gcc -O2 -no-pie -fno-pie -fpatchable-function-entry=5
// build: gcc -O2 -pie -fPIE -fpatchable-function-entry=8,3
// what: a patcher (uftrace, live patches) writes a call over the entry nops named by __patchable_function_entries; a probe is the function's first statement, a loop head follows
#include <stdio.h>
#include <string.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/sdt.h>
extern uintptr_t __start___patchable_function_entries[], __stop___patchable_function_entries[];
long calls;
__attribute__((noinline, used, patchable_function_entry(0, 0))) void hook_body(void) { calls++; }
void hook(void);
__asm__(".text\n.globl hook\nhook: push %rax\npush %rcx\npush %rdx\npush %rsi\npush %rdi\npush %r8\npush %r9\npush %r10\npush %r11\npush %rbp\nmov %rsp,%rbp\nand $-16,%rsp\ncall hook_body\nmov %rbp,%rsp\npop %rbp\npop %r11\npop %r10\npop %r9\npop %r8\npop %rdi\npop %rsi\npop %rdx\npop %rcx\npop %rax\nret\n");
__attribute__((noinline)) long f(long x, const long *p) {
  DTRACE_PROBE(c, entry);
  do { x = (x << 1) ^ *p; } while (*p++);
  return x;
}
__attribute__((noinline)) long g(long x) { DTRACE_PROBE(c, g); return x + 1; }
__attribute__((noinline)) void h(void) { DTRACE_PROBE(c, h); }
__attribute__((patchable_function_entry(0, 0))) int main(void) {
  static const long v[] = {5, 7, 9, 0};
  long s = 1;
  for (int r = 0; r < 3; r++) {
    for (int i = 0; i < 10; i++) { s = g(f(s & 0xffff, v)); h(); }
    printf("%lx %ld\n", s, calls); fflush(stdout);
    for (uintptr_t *e = __start___patchable_function_entries; e < __stop___patchable_function_entries; e++) {
      uintptr_t at = *e;
      if (memcmp((void *)at, "\xf3\x0f\x1e\xfa", 4) == 0) at += 4;
      if (*(unsigned char *)at != 0x90 && *(unsigned char *)at != 0x0f && *(unsigned char *)at != 0xe8 && *(unsigned char *)at != 0x66) { printf("odd entry %02x\n", *(unsigned char *)at); continue; }
      unsigned char b[5] = {0xe8};
      int32_t d = (int32_t)((uintptr_t)hook - at - 5);
      memcpy(b + 1, &d, 4);
      mprotect((void *)(at & ~4095ul), 8192, PROT_READ | PROT_WRITE | PROT_EXEC);
      memcpy((void *)at, b, 5);
    }
  }
  return 0;
}
