/* Finds its own probes in its index, as include/reprobe/index.h says; prints each, at the addresses
 * that its file states, and what its memory is mapped as. Then the probes are passed. */
#define _GNU_SOURCE
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "probe.h"
#include "reprobe/index.h"

#define COUNTER(name) \
  __attribute__((used, section(".probes"), visibility("hidden"))) unsigned short index_##name##_semaphore;
COUNTER(begin)
COUNTER(step)
COUNTER(end)

static void print_mapping(const void *at) {
  char line[512], rights[8];
  unsigned long begin, end;
  FILE *maps = fopen("/proc/self/maps", "r");
  while (maps && fgets(line, sizeof line, maps))
    if (sscanf(line, "%lx-%lx %7s", &begin, &end, rights) == 3 && begin <= (unsigned long)at &&
        (unsigned long)at < end)
      printf("mapped %s\n", rights);
  if (maps) fclose(maps);
}

static unsigned long distance(const void *target, ElfW(Addr) load) {
  return target ? (unsigned long)((ElfW(Addr))target - load) : 0;
}

static void print_index(const struct reprobe_index *index, ElfW(Addr) load) {
  if (index->version != REPROBE_INDEX_VERSION) return;
  print_mapping(index);
  for (uint32_t i = 0; i < index->entry_count; ++i) {
    const struct reprobe_index_entry *entry = reprobe_index_entry_at(index, i);
    const unsigned short *counter = reprobe_index_target(&entry->semaphore);
    printf("site 0x%lx semaphore 0x%lx slot 0x%lx resume 0x%lx kind %d size %d %s %s %s\n",
           distance(reprobe_index_target(&entry->site), load), distance(counter, load),
           distance(reprobe_index_target(&entry->slot), load),
           distance(reprobe_index_target(&entry->resume), load), entry->kind, entry->size,
           reprobe_index_string(index, entry->provider), reprobe_index_string(index, entry->name),
           reprobe_index_string(index, entry->arguments));
    if (counter && *counter) printf("counter %d\n", *counter);
  }
}

static int look(struct dl_phdr_info *object, size_t size, void *unused) {
  (void)size, (void)unused;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr) *header = &object->dlpi_phdr[i];
    if (header->p_type != PT_NOTE || header->p_align == 8) continue;
    const char *at = (const char *)(object->dlpi_addr + header->p_vaddr);
    const char *end = at + header->p_memsz;
    while ((size_t)(end - at) >= sizeof(ElfW(Nhdr))) {
      const ElfW(Nhdr) *note = (const void *)at;
      const char *name = at + sizeof *note;
      const char *desc = name + (note->n_namesz + 3) / 4 * 4;
      if (note->n_namesz == sizeof REPROBE_INDEX_NAME && note->n_type == REPROBE_INDEX_TYPE &&
          memcmp(name, REPROBE_INDEX_NAME, sizeof REPROBE_INDEX_NAME) == 0) {
        print_index((const struct reprobe_index *)(const void *)desc, object->dlpi_addr);
        return 1;
      }
      at = desc + (note->n_descsz + 3) / 4 * 4;
    }
  }
  return 0;
}

int main(int argc, char **argv) {
  int sum = argc;
  (void)argv;
  PROBE1(index, begin, sum);
  for (int i = 0; i < 3; ++i) {
    sum += i;
    PROBE2(index, step, i, sum);
  }
  dl_iterate_phdr(look, 0);
  PROBE0(index, end);
  printf("sum %d\n", sum);
  return 0;
}
