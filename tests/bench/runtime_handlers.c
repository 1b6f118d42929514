/* With general registers only. */
#include <reprobe/rt.h>

void empty(const struct reprobe_rt_hit* hit, void* context) {
  (void)hit;
  (void)context;
}
void read_all(const struct reprobe_rt_hit* hit, void* context) {
  unsigned long sum = 0;
  for (unsigned i = 0; i < hit->probe->argument_count; ++i) {
    struct reprobe_rt_value value;
    if (reprobe_rt_argument(hit, i, &value) == 0) sum += value.bits;
  }
  *(unsigned long*)context += sum;
}
void count_one(const struct reprobe_rt_hit* hit, void* context) {
  (void)hit;
  __atomic_fetch_add((unsigned long*)context, 1, __ATOMIC_RELAXED);
}
