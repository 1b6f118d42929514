/* What the agent writes and `reprobe run` reads: a file that the processes map, whoever forked or
 * executed them, so that it is there however they ended. */
#ifndef REPROBE_AGENT_TABLE_H
#define REPROBE_AGENT_TABLE_H

#include <stdint.h>

#define REPROBE_TABLE_MAGIC 0x32637472u /* "rtc2" */
#define REPROBE_TABLE_ENTRIES 8192u
/* Each thread has a row of counters of its own, as long as there are any; the rest share the last.
 */
#define REPROBE_TABLE_ROWS 128u
#define REPROBE_TABLE_EVENTS (1u << 20)
#define REPROBE_TABLE_ARGUMENTS 5u

struct reprobe_table_entry {
  char name[248]; /* provider:name */
  uint32_t ready; /* the name is there */
  uint32_t unused;
};

struct reprobe_table_event {
  uint64_t time; /* of the time stamp counter */
  uint32_t entry;
  uint32_t process, thread;
  uint16_t ready; /* all of it is there */
  uint8_t arguments;
  uint8_t is_signed; /* bit n: argument n is */
  uint64_t argument[REPROBE_TABLE_ARGUMENTS];
};

struct reprobe_table {
  uint32_t magic;
  uint32_t used;     /* entries; more than there are: some were lost */
  uint32_t attached; /* processes that came so far */
  uint32_t failed;   /* attachments that were refused */
  uint32_t rows;     /* given to threads; more than there are: some share the last */
  uint32_t unused;
  uint64_t events; /* more than there are: the rest is lost */
  uint64_t unused2[4];
  struct reprobe_table_entry entry[REPROBE_TABLE_ENTRIES];
  uint64_t hits[REPROBE_TABLE_ROWS][REPROBE_TABLE_ENTRIES];
  struct reprobe_table_event event[REPROBE_TABLE_EVENTS];
};

#endif
