#ifndef HANDLERS_H
#define HANDLERS_H
#include <reprobe/rt.h>

enum { MOST = 8 };
struct sums {
  uint64_t hits, errors;
  uint64_t of[MOST];
  int size[MOST];
  int is_float[MOST];
};
void add_up(const struct reprobe_rt_hit* hit, void* context);
void count(const struct reprobe_rt_hit* hit, void* context);
#endif
