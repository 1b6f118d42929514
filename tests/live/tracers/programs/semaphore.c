/* The semaphore of guard.c. IN_DATA, IN_BSS, READ_ONLY, ODD: not where it belongs, in a .probes of
 * its own. */
#if defined IN_DATA
#define PLACE ".data"
#elif defined IN_BSS
#define PLACE ".bss"
#elif defined READ_ONLY
#define PLACE ".section .rodata"
#else
#define PLACE ".section .probes,\"aw\",@progbits"
#endif

#ifdef ODD
#define BEFORE ".byte 0\n"
#else
#define BEFORE ".balign 2\n"
#endif

#ifdef EXPORTED
#define VISIBILITY(name) ""
#else
#define VISIBILITY(name) ".hidden traced_" name "_semaphore\n"
#endif

#define SEMAPHORE(name)                              \
  BEFORE ".globl traced_" name "_semaphore\n"        \
  VISIBILITY(name)                                   \
  ".type traced_" name "_semaphore, @object\n"       \
  ".size traced_" name "_semaphore, 2\n"             \
  "traced_" name "_semaphore: .zero 2\n"

__asm__(PLACE "\n" SEMAPHORE("guarded")
#ifdef SECOND
            SEMAPHORE("second")
#endif
        ".text\n");
