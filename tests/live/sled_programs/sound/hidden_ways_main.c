#include <stdio.h>
#define EACH(f) \
  f(shifted) f(shifted_near) f(unused_words) f(below_base) f(not_compared) f(stored_to) \
  f(added_in_memory) f(added_between) f(passes) f(passes_by_pop)
#define DECLARE(name) int name(long x);
#define CALL(name) printf(#name " %d\n", name(i)); fflush(stdout);
EACH(DECLARE)
int main(void) {
  for (long i = 0; i < 4; i++) { EACH(CALL) }
  return 0;
}
