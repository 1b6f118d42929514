/* The counts of `reprobe run --count`: a file that the processes map and add to, whoever forked or
 * executed them, and that the command reads, however they ended. */
#ifndef REPROBE_AGENT_TABLE_H
#define REPROBE_AGENT_TABLE_H

#include <stdint.h>

#define REPROBE_TABLE_MAGIC 0x31637472u /* "rtc1" */
#define REPROBE_TABLE_ENTRIES 8192u
#define REPROBE_TABLE_SHARDS 4u

struct reprobe_table_entry {
  char name[248]; /* provider:name */
  uint32_t ready; /* the name is there */
  uint32_t unused;
  uint64_t hits[REPROBE_TABLE_SHARDS]
               [8]; /* the first of each line: threads add to different ones */
};

struct reprobe_table {
  uint32_t magic;
  uint32_t used;     /* entries; more than there are: some were lost */
  uint32_t attached; /* processes that came so far */
  uint32_t failed;   /* attachments that were refused */
  uint64_t nested;
  uint64_t unused[5];
  struct reprobe_table_entry entry[REPROBE_TABLE_ENTRIES];
};

#endif
