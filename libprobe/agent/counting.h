#ifndef REPROBE_AGENT_COUNTING_H
#define REPROBE_AGENT_COUNTING_H

#include "libprobe/agent/table.h"
#include "reprobe/rt.h"

/* Counts in the entry that is its context. With general registers only. */
void reprobe_agent_count(const struct reprobe_rt_hit* hit, void* entry);

#endif
