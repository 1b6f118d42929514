/* The index of the probes of a program, as `reprobe relativize` writes it: .note.reprobe,
 * version 1. docs/format.md is the specification; names and offsets are its own.
 *
 * The index is the descriptor of the ELF note with the name REPROBE_INDEX_NAME and the type
 * REPROBE_INDEX_TYPE in some PT_NOTE; dl_iterate_phdr(3) leads to it. The structures overlay the
 * bytes in memory, in the byte order of the process. They are 4-byte aligned.
 *
 *   const struct reprobe_index *index = ...the descriptor...;
 *   if (index->version != REPROBE_INDEX_VERSION) return;
 *   for (uint32_t i = 0; i < index->entry_count; ++i) {
 *     const struct reprobe_index_entry *entry = reprobe_index_entry_at(index, i);
 *     puts(reprobe_index_string(index, entry->name));
 *   }
 *
 * Plain C99; C++ too. */
#ifndef REPROBE_INDEX_H
#define REPROBE_INDEX_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define REPROBE_INDEX_NAME "reprobe" /* n_namesz is 8: the NUL counts */
#define REPROBE_INDEX_TYPE 1         /* n_type */
#define REPROBE_INDEX_VERSION 1

/* reprobe_index.flags */
#define REPROBE_INDEX_PARTIAL 0x1u /* made of some of the probes */

/* The distance in bytes from the word's own address to what it names; 0: there is none. */
typedef int32_t reprobe_index_word;

/* The descriptor begins with it. */
struct reprobe_index {
  uint32_t version;        /* REPROBE_INDEX_VERSION; in others the rest may mean something else */
  uint32_t header_size;    /* bytes from here to the first entry; 28 or more */
  uint32_t entry_count;    /* entries */
  uint32_t entry_size;     /* bytes from one entry to the next; 32 or more */
  uint32_t strings_size;   /* bytes; the strings stand behind the last entry */
  uint32_t flags;          /* REPROBE_INDEX_*; ignore others */
  reprobe_index_word base; /* .stapsdt.base */
};

/* reprobe_index_entry.kind; take others for REPROBE_KIND_OTHER. */
enum {
  REPROBE_KIND_OTHER = 0,      /* no nop that a probe macro emits */
  REPROBE_KIND_NOP = 1,        /* the one nop of the machine */
  REPROBE_KIND_NOP5 = 2,       /* x86-64: 0f 1f 44 00 00, also behind a 90 */
  REPROBE_KIND_NOP10 = 3,      /* x86-64: 90 66 2e 0f 1f 84 00 00 00 00 00 */
  REPROBE_KIND_SLED_NOP5 = 4,  /* put there by `reprobe sled` */
  REPROBE_KIND_SLED_NOP10 = 5, /* likewise */
  REPROBE_KIND_SLED_CALL = 6,  /* kept for a runtime in the process */
  REPROBE_KIND_SLED_SLOT = 7   /* tests a slot: docs/format.md */
};

/* One note of .note.stapsdt; the entries have the order of the notes. */
struct reprobe_index_entry {
  reprobe_index_word site;      /* the instruction that a tracer patches; never 0 */
  reprobe_index_word semaphore; /* the uint16_t that a tracer raises while it traces */
  reprobe_index_word slot;      /* what REPROBE_KIND_SLED_SLOT tests */
  reprobe_index_word resume;    /* the byte behind the nop; 0 for REPROBE_KIND_OTHER */
  uint16_t kind;                /* REPROBE_KIND_* */
  uint16_t size;                /* bytes of the nop; 0 for REPROBE_KIND_OTHER */
  uint32_t provider;            /* offsets in the strings, each up to a NUL */
  uint32_t name;
  uint32_t arguments; /* as in the note: "8@%rdi -4@$1" */
};

/* What a word names, in this process; a null pointer where there is none. */
static inline void* reprobe_index_target(const reprobe_index_word* word) {
  return *word == 0 ? (void*)0 : (void*)((uintptr_t)word + (uintptr_t)(intptr_t)*word);
}

/* `i` is below entry_count. */
static inline const struct reprobe_index_entry* reprobe_index_entry_at(
    const struct reprobe_index* index, uint32_t i) {
  return (const struct reprobe_index_entry*)((const char*)index + index->header_size +
                                             (size_t)i * index->entry_size);
}

/* `offset` is one of an entry's, below strings_size. */
static inline const char* reprobe_index_string(const struct reprobe_index* index, uint32_t offset) {
  return (const char*)index + index->header_size + (size_t)index->entry_count * index->entry_size +
         offset;
}

#ifdef __cplusplus
}
#endif

#endif
