// maps_zip FILE OFFSET: maps the ELF file that begins at the offset of FILE as Android's linker
// maps a library out of an .apk, and waits. Prints the load address.
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int fd = open(argv[1], O_RDONLY);
  const off_t start = strtol(argv[2], NULL, 0);
  Elf64_Ehdr header;
  Elf64_Phdr segments[16];
  if (pread(fd, &header, sizeof header, start) != sizeof header || header.e_phnum > 16) return 1;
  const ssize_t size = (ssize_t)(header.e_phnum * sizeof *segments);
  if (pread(fd, segments, (size_t)size, start + (off_t)header.e_phoff) != size) return 1;
  char* base = mmap(NULL, 1 << 24, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (int i = 0; i < header.e_phnum; ++i) {
    const Elf64_Phdr* s = &segments[i];
    if (s->p_type != PT_LOAD) continue;
    const Elf64_Addr in_page = s->p_vaddr & 4095;
    const int protection = (s->p_flags & PF_R ? PROT_READ : 0) | (s->p_flags & PF_W ? PROT_WRITE : 0) |
                           (s->p_flags & PF_X ? PROT_EXEC : 0);
    if (mmap(base + s->p_vaddr - in_page, s->p_filesz + in_page, protection, MAP_PRIVATE | MAP_FIXED,
             fd, start + (off_t)(s->p_offset - in_page)) == MAP_FAILED)
      return 1;
  }
  printf("%p\n", (void*)base);
  fflush(stdout);
  pause();
}
