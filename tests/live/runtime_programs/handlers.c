/* Handlers that use general registers only. */
#include "handlers.h"

/* Sums of what each argument was: of a float its bits. */
void add_up(const struct reprobe_rt_hit* hit, void* context) {
  struct sums* sums = context;
  struct reprobe_rt_value value;
  for (unsigned i = 0; i < hit->probe->argument_count && i < MOST; ++i) {
    const int error = reprobe_rt_argument(hit, i, &value);
    if (error != 0) {
      ++sums->errors;
      continue;
    }
    sums->of[i] += value.bits;
    sums->size[i] = value.is_signed ? -value.size : value.size;
    sums->is_float[i] = value.is_float;
  }
  ++sums->hits;
}

void count(const struct reprobe_rt_hit* hit, void* context) {
  (void)hit;
  ++*(uint64_t*)context;
}
