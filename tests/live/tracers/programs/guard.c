/* The probe behind a semaphore, which semaphore.c defines.
 *   FIELD_ZERO   the note does not name the semaphore that the code asks
 *   SECOND       another note names the same instruction, with another semaphore */
#ifndef FIELD_ZERO
#define _SDT_HAS_SEMAPHORES 1
#endif
#include "sdt_site.h"

extern unsigned short traced_guarded_semaphore;
extern unsigned short traced_second_semaphore;

long guarded;

#define NOTE(name)                               \
  ".pushsection .note.stapsdt,\"?\",\"note\"\n"  \
  ".balign 4\n"                                  \
  ".4byte 8, 994f-993f, 3\n"                     \
  ".asciz \"stapsdt\"\n"                         \
  "993: .8byte 990b, _.stapsdt.base\n"           \
  ".8byte traced_" name "_semaphore\n"           \
  ".asciz \"traced\", \"" name "\", \"-4@%0\"\n" \
  "994: .balign 4\n"                             \
  ".popsection\n"                                \
  ".set site.traced." name ".%=, 990b\n"

__attribute__((noinline)) void guard(int i) {
  if (__builtin_expect(traced_guarded_semaphore, 0)) {
#ifdef SECOND
    __asm__ volatile("990: nop\n" NOTE("guarded") NOTE("second")::"r"(i));
#else
    STAP_PROBE1(traced, guarded, i);
#endif
    ++guarded;
  }
}
