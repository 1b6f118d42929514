/* Loaded into a program by the dynamic linker: asks libgcc for what unwinds each address of the
 * program's executable segments, in small steps, and writes to descriptor 9 where the answer changes:
 * the FDE's place, the function's start, and the rule bytes of FDE and CIE. The step is small enough to
 * meet every function and every stub, and a change of one row of .eh_frame_hdr. */
#define _GNU_SOURCE
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct dwarf_eh_bases {
  void* tbase;
  void* dbase;
  void* func;
};
extern const void* _Unwind_Find_FDE(void* pc, struct dwarf_eh_bases* bases);

enum { FINDINGS = 9, STEP = 1, MOST = 1 << 20 };

static uint64_t digest(uint64_t value, const unsigned char* bytes, size_t size) {
  for (size_t i = 0; i < size; ++i) value = (value ^ bytes[i]) * 0x100000001b3u;
  return value;
}

static uint64_t of_record(const unsigned char* record) {
  uint32_t size;
  memcpy(&size, record, sizeof size);
  return digest(0xcbf29ce484222325u, record, size < 65536 ? size + 4 : 4);
}

static void say(uint64_t at, const unsigned char* fde, const struct dwarf_eh_bases* bases) {
  char line[160];
  int length;
  if (fde == NULL) {
    length = snprintf(line, sizeof line, "%#lx nothing\n", (unsigned long)at);
  } else {
    int32_t back;
    memcpy(&back, fde + 4, sizeof back);
    length = snprintf(line, sizeof line, "%#lx FDE %p of %p %016lx CIE %016lx\n", (unsigned long)at,
                      (const void*)fde, bases->func, (unsigned long)of_record(fde),
                      (unsigned long)of_record(fde + 4 - back));
  }
  if (write(FINDINGS, line, (size_t)length) < 0) _exit(125);
}

static int look(struct dl_phdr_info* info, size_t size, void* data) {
  (void)size;
  const char* wanted = data;
  if (strcmp(info->dlpi_name, wanted) != 0) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* header = &info->dlpi_phdr[i];
    if (header->p_type != PT_LOAD || (header->p_flags & PF_X) == 0) continue;
    uint64_t begin = info->dlpi_addr + header->p_vaddr;
    uint64_t end = begin + (header->p_memsz < MOST ? header->p_memsz : MOST);
    const unsigned char* last = (const unsigned char*)1;
    for (uint64_t at = begin; at < end; at += STEP) {
      struct dwarf_eh_bases bases = {0};
      const unsigned char* fde = _Unwind_Find_FDE((void*)at, &bases);
      if (fde != last) say(at, fde, &bases);
      last = fde;
    }
  }
  return 0;
}

/* "" is the program itself. */
void look_at(const char* name) { dl_iterate_phdr(look, (void*)name); }

__attribute__((constructor)) static void start(void) { look_at(""); }
