/* The loaded objects that have an index, and their probes. What is found is never freed: a thread
 * may be about to read it. */
#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "internal.h"
#include "reprobe/index.h"

enum { kPage = 4096, kSlotBytes = 24 };

struct rt_site* rt_sites;
static struct rt_site** last = &rt_sites;
static struct rt_object* objects;
static unsigned long long adds, subs;
static bool walked;

static char* copied(const char* text) {
  const size_t size = strlen(text) + 1;
  char* copy = rt_allocate(size);
  if (copy != 0) memcpy(copy, text, size);
  return copy;
}

/* The index in a segment of notes, with its size; null where there is none (docs/format.md). */
static const struct reprobe_index* index_in(const char* notes, size_t size, size_t* bytes) {
  enum { kHead = 12 };
  for (size_t at = 0; at + kHead <= size;) {
    uint32_t head[3];
    memcpy(head, notes + at, sizeof head);
    const size_t name = at + kHead;
    const size_t descriptor = name + ((size_t)head[0] + 3) / 4 * 4;
    const size_t next = descriptor + ((size_t)head[1] + 3) / 4 * 4;
    if (next > size || descriptor < name) return 0;
    if (head[0] == sizeof REPROBE_INDEX_NAME && head[2] == REPROBE_INDEX_TYPE &&
        memcmp(notes + name, REPROBE_INDEX_NAME, sizeof REPROBE_INDEX_NAME) == 0) {
      *bytes = head[1];
      return (const struct reprobe_index*)(const void*)(notes + descriptor);
    }
    at = next;
  }
  return 0;
}

static bool is_whole(const struct reprobe_index* index, size_t bytes) {
  if (bytes < sizeof *index || index->version != REPROBE_INDEX_VERSION) return false;
  if (index->header_size < sizeof *index || index->entry_size < sizeof(struct reprobe_index_entry))
    return false;
  const uint64_t size = (uint64_t)index->header_size +
                        (uint64_t)index->entry_count * index->entry_size + index->strings_size;
  return size <= bytes && index->strings_size != 0 &&
         reprobe_index_string(index, index->strings_size - 1)[0] == 0;
}

static const char* text_of(const struct reprobe_index* index, uint32_t offset) {
  return offset < index->strings_size ? reprobe_index_string(index, offset) : "";
}

/* Is it in a segment that the program writes, and not among what is read-only after relocation? */
static bool is_writable(const struct dl_phdr_info* info, const void* at) {
  bool writable = false;
  for (unsigned i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* header = &info->dlpi_phdr[i];
    const uintptr_t from = (uintptr_t)at - (info->dlpi_addr + header->p_vaddr);
    if (header->p_memsz < sizeof(uint16_t) || from > header->p_memsz - sizeof(uint16_t)) continue;
    if (header->p_type == PT_GNU_RELRO) return false;
    writable = writable || (header->p_type == PT_LOAD && (header->p_flags & PF_W) != 0);
  }
  return writable;
}

static struct rt_site* site_of(const struct reprobe_index* index, uint32_t number,
                               struct rt_object* object, const struct dl_phdr_info* info) {
  const struct reprobe_index_entry* entry = reprobe_index_entry_at(index, number);
  struct rt_site* site = rt_allocate(sizeof *site);
  if (site == 0) return 0;
  site->object = object;
  site->first = site;
  site->probe.object = object->path;
  site->probe.provider = copied(text_of(index, entry->provider));
  site->probe.name = copied(text_of(index, entry->name));
  site->probe.arguments = copied(text_of(index, entry->arguments));
  site->probe.site = reprobe_index_target(&entry->site);
  if (site->probe.provider == 0 || site->probe.name == 0 || site->probe.arguments == 0) return 0;
  site->probe.argument_count = rt_parse_arguments(site->probe.arguments, site->operands);
  if (entry->kind == REPROBE_KIND_SLED_SLOT && entry->slot != 0) {
    site->slot = reprobe_index_target(&entry->slot);
    site->probe.attachable = 1;
    uint16_t* const semaphore = reprobe_index_target(&entry->semaphore);
    if (semaphore != 0 && is_writable(info, semaphore)) site->semaphore = semaphore;
  }
  return site;
}

/* The page or pages that hold the slots, and who has a slot together with whom. */
static bool find_slots(struct rt_object* object) {
  uintptr_t begin = UINTPTR_MAX, end = 0;
  for (unsigned i = 0; i < object->count; ++i) {
    const uintptr_t slot = (uintptr_t)object->sites[i]->slot;
    if (slot == 0) continue;
    if (slot < begin) begin = slot;
    if (slot + kSlotBytes > end) end = slot + kSlotBytes;
  }
  if (end == 0) return true;
  object->slots = begin / kPage * kPage;
  object->slots_end = (end + kPage - 1) / kPage * kPage;
  const size_t slots = (end - begin) / kSlotBytes;
  if (slots > object->count) return false;
  struct rt_site** owners = rt_allocate(slots * sizeof *owners);
  if (owners == 0) return false;
  for (unsigned i = 0; i < object->count; ++i) {
    struct rt_site* site = object->sites[i];
    if (site->slot == 0) continue;
    struct rt_site** owner = &owners[((uintptr_t)site->slot - begin) / kSlotBytes];
    if (*owner == 0) *owner = site;
    site->first = *owner;
  }
  rt_release(owners);
  return true;
}

static struct rt_object* object_of(const struct reprobe_index* index,
                                   const struct dl_phdr_info* info) {
  struct rt_object* object = rt_allocate(sizeof *object);
  if (object == 0) return 0;
  object->index = index;
  object->bias = info->dlpi_addr;
  object->path = copied(info->dlpi_name);
  object->count = index->entry_count;
  object->sites = rt_allocate(object->count * sizeof *object->sites);
  if (object->path == 0 || object->sites == 0) return 0;
  for (unsigned i = 0; i < object->count; ++i) {
    object->sites[i] = site_of(index, i, object, info);
    if (object->sites[i] == 0) return 0;
  }
  return find_slots(object) ? object : 0;
}

struct walk {
  void (*found)(struct rt_site* site);
};

static void publish(struct rt_object* object, void (*found)(struct rt_site* site)) {
  object->loaded = object->seen = true;
  object->next = objects;
  objects = object;
  for (unsigned i = 0; i < object->count; ++i) {
    struct rt_site* site = object->sites[i];
    __atomic_store_n(last, site, __ATOMIC_RELEASE);
    last = &site->next;
    found(site);
  }
}

/* The library was closed and opened again at its place since the last walk: its slots are zeros. */
static bool is_fresh(const struct rt_object* object) {
  for (unsigned i = 0; i < object->count; ++i) {
    const struct rt_site* site = object->sites[i];
    if (site->slot != 0 && site->first == site && site->calls != 0 && site->slot->argument != site)
      return true;
  }
  return false;
}

static void unload(struct rt_object* object) {
  object->loaded = false;
  for (unsigned i = 0; i < object->count; ++i) {
    object->sites[i]->probe.attachable = 0;
    object->sites[i]->slot = 0;
    object->sites[i]->semaphore = 0;
  }
}

static void meet(const struct reprobe_index* index, const struct dl_phdr_info* info,
                 void (*found)(struct rt_site* site)) {
  for (struct rt_object* known = objects; known != 0; known = known->next) {
    if (!known->loaded || known->index != index || known->bias != info->dlpi_addr ||
        strcmp(known->path, info->dlpi_name) != 0)
      continue;
    if (is_fresh(known)) break;
    known->seen = true;
    return;
  }
  struct rt_object* object = object_of(index, info);
  if (object != 0) publish(object, found);
}

static int visit(struct dl_phdr_info* info, size_t size, void* context) {
  (void)size;
  const struct walk* walk = context;
  for (unsigned i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* header = &info->dlpi_phdr[i];
    if (header->p_type != PT_NOTE || header->p_align == 8) continue;
    const char* notes = (const char*)(info->dlpi_addr + header->p_vaddr);
    size_t bytes = 0;
    const struct reprobe_index* index = index_in(notes, header->p_memsz, &bytes);
    if (index == 0) continue;
    if (is_whole(index, bytes)) meet(index, info, walk->found);
    return 0;
  }
  return 0;
}

static int look_at_counts(struct dl_phdr_info* info, size_t size, void* context) {
  (void)size;
  unsigned long long* counts = context;
  counts[0] = info->dlpi_adds;
  counts[1] = info->dlpi_subs;
  return 1;
}

void rt_find_objects(void (*found)(struct rt_site* site)) {
  unsigned long long counts[2] = {0, 0};
  dl_iterate_phdr(look_at_counts, counts);
  if (walked && counts[0] == adds && counts[1] == subs) return;
  for (struct rt_object* object = objects; object != 0; object = object->next) object->seen = false;
  struct walk walk = {found};
  dl_iterate_phdr(visit, &walk);
  for (struct rt_object* object = objects; object != 0; object = object->next) {
    if (object->loaded && !object->seen) unload(object);
  }
  adds = counts[0];
  subs = counts[1];
  walked = true;
}

int rt_open_slots(struct rt_object* object) {
  if (object->open) return 0;
  if (mprotect((void*)object->slots, object->slots_end - object->slots, PROT_READ | PROT_WRITE) !=
      0)
    return -errno;
  object->open = true;
  return 0;
}

static bool stays_read_only(void) {
  static int asked;
  if (asked == 0) {
    const char* word = getenv("REPROBE_SLOTS");
    asked = word != 0 && strcmp(word, "readonly") == 0 ? 1 : 2;
  }
  return asked == 1;
}

void rt_close_slots(struct rt_object* object) {
  if (!object->open || !stays_read_only()) return;
  if (mprotect((void*)object->slots, object->slots_end - object->slots, PROT_READ) == 0)
    object->open = false;
}

int reprobe_rt_each(int (*visitor)(const struct reprobe_rt_probe* probe, void* context),
                    void* context) {
  const struct rt_site* site = __atomic_load_n(&rt_sites, __ATOMIC_ACQUIRE);
  for (; site != 0; site = __atomic_load_n(&site->next, __ATOMIC_ACQUIRE)) {
    const int result = visitor(&site->probe, context);
    if (result != 0) return result;
  }
  return 0;
}
