/* Memory that never comes from malloc: what is attached to a probe in malloc may attach more.
 * Blocks of powers of two, given back to their kind; whole pages from the system. The lock is held.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <sys/mman.h>

#include "internal.h"

struct block {
  uint64_t kind; /* log2 of the bytes, the head included */
  struct block* next;
};
enum { kSmallest = 5, kKinds = 48, kPiece = 18 };

static struct block* released[kKinds];
static char* piece;
static char* piece_end;

static void* pages(size_t size) {
  void* at = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return at == MAP_FAILED ? 0 : at;
}

static char* cut(size_t size) {
  if (size >= (size_t)1 << kPiece) return pages(size);
  if ((size_t)(piece_end - piece) < size) {
    char* fresh = pages((size_t)1 << kPiece);
    if (fresh == 0) return 0;
    piece = fresh;
    piece_end = fresh + ((size_t)1 << kPiece);
  }
  char* at = piece;
  piece += size;
  return at;
}

void* rt_allocate(size_t size) {
  unsigned kind = kSmallest;
  while (kind < kKinds && ((size_t)1 << kind) < size + sizeof(struct block)) ++kind;
  if (kind == kKinds) return 0;
  struct block* block = released[kind];
  if (block != 0) {
    released[kind] = block->next;
  } else {
    block = (struct block*)(void*)cut((size_t)1 << kind);
    if (block == 0) return 0;
    block->kind = kind;
  }
  __builtin_memset(block + 1, 0, size);
  return block + 1;
}

void rt_release(void* memory) {
  if (memory == 0) return;
  struct block* block = (struct block*)memory - 1;
  block->next = released[block->kind];
  released[block->kind] = block;
}
