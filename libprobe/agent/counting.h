#ifndef REPROBE_AGENT_COUNTING_H
#define REPROBE_AGENT_COUNTING_H

#include "libprobe/agent/table.h"
#include "reprobe/rt.h"

/* Handlers that use general registers only. Their context is an entry of the table. */
void reprobe_agent_count(const struct reprobe_rt_hit* hit, void* entry);
void reprobe_agent_trace(const struct reprobe_rt_hit* hit, void* entry);

extern struct reprobe_table* reprobe_agent_table;
/* At the start, and in a forked child: its only thread gets a row of its own. */
void reprobe_agent_new_process(void);

#endif
