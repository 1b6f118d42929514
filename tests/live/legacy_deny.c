/* An auditor for ld.so (LD_AUDIT): takes the right to write from the pages of one section as soon as
 * its file is mapped, before any relocation. DENY=FILE,ADDRESS,SIZE; FILE is a base name, "" for the
 * program. */
#define _GNU_SOURCE
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

unsigned la_version(unsigned version) { return version; }

unsigned la_objopen(struct link_map *map, Lmid_t lmid, uintptr_t *cookie) {
  (void)lmid;
  (void)cookie;
  const char *wanted = getenv("DENY");
  if (!wanted) return 0;
  const char *comma = strchr(wanted, ',');
  const char *slash = strrchr(map->l_name, '/');
  const char *name = slash ? slash + 1 : map->l_name;
  if (!comma || strlen(name) != (size_t)(comma - wanted) ||
      memcmp(name, wanted, (size_t)(comma - wanted)) != 0)
    return 0;
  char *end;
  const unsigned long start = strtoul(comma + 1, &end, 0);
  const unsigned long size = strtoul(end + 1, NULL, 0);
  if (mprotect((void *)(map->l_addr + start), size, PROT_READ) != 0) abort();
  return 0;
}
