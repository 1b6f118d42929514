// odd HOW LIBRARY: does to the library's mappings, or to itself, what few programs do, prints a line
// and waits. The library has the probe plug:plugged.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/sdt.h>
#include <sys/stat.h>
#include <unistd.h>

static char *text, *text_end, *header;

static int find_text(struct dl_phdr_info* info, size_t size, void* library) {
  (void)size;
  if (!strstr(info->dlpi_name, library)) return 0;
  header = (char*)info->dlpi_addr;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* s = &info->dlpi_phdr[i];
    if (s->p_type != PT_LOAD || !(s->p_flags & PF_X)) continue;
    text = header + (s->p_vaddr & ~4095ul);
    text_end = header + ((s->p_vaddr + s->p_memsz + 4095) & ~4095ul);
  }
  return 1;
}

static void* waits(void* unused) {
  printf("ready\n");
  fflush(stdout);
  for (;;) pause();
  return unused;
}

static void* map_file(const char* file, int protection, int flags, void* at, size_t size, off_t offset) {
  const int fd = open(file, O_RDWR);
  void* mapped = mmap(at, size, protection, flags, fd, offset);
  close(fd);
  return mapped;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const char* how = argv[1];
  const char* library = argv[2];
  if (!strcmp(how, "again")) {  // executes itself for ever
    printf("ready\n");
    fflush(stdout);
    for (;;) execl("/proc/self/exe", argv[0], "again-quietly", library, NULL);
  }
  if (!strcmp(how, "again-quietly")) {
    DTRACE_PROBE(odd, again);
    execl("/proc/self/exe", argv[0], how, library, NULL);
  }
  // All that is mapped is executable, data too.
  if (!strcmp(how, "implied")) personality(READ_IMPLIES_EXEC);
  if (!strcmp(how, "leaderless")) {  // the first thread ends, another lives on
    if (!dlopen(library, RTLD_NOW)) return 1;
    pthread_t thread;
    pthread_create(&thread, NULL, waits, NULL);
    pthread_exit(NULL);
  }
  if (!strcmp(how, "device")) {  // executable memory of a special file
    const int fd = open(library, O_RDWR);
    if (mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED) return 1;
  } else if (!strcmp(how, "whole")) {  // the whole file as code, at one place
    struct stat status;
    stat(library, &status);
    char* at = map_file(library, PROT_READ | PROT_EXEC, MAP_PRIVATE, NULL, (size_t)status.st_size, 0);
    printf("%p\n", (void*)at);
  } else if (!strcmp(how, "many")) {  // its code page after page, tens of thousands of times
    for (int i = 0; i < 30000; ++i)
      if (map_file(library, PROT_READ | PROT_EXEC, MAP_PRIVATE, NULL, 4096, 4096) == MAP_FAILED) return 1;
  } else {
    if (!dlopen(library, RTLD_NOW)) return 1;
    if (!dl_iterate_phdr(find_text, (void*)library) || !text) return 1;
    const size_t size = (size_t)(text_end - text);
    if (!strcmp(how, "moved")) {  // the code, and nothing else, stands elsewhere
      char* to = mremap(text, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, (char*)(0x7000ul << 32));
      if (to == MAP_FAILED) return 1;
      printf("%p\n", (void*)(to - (text - header)));
    } else if (!strcmp(how, "copied")) {  // as programs do that use large pages for their code
      char* copy = mmap(NULL, size, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      memcpy(copy, text, size);
      mprotect(copy, size, PROT_READ | PROT_EXEC);
      if (mremap(copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, text) == MAP_FAILED) return 1;
      printf("%p\n", (void*)header);
    } else if (!strcmp(how, "shifted")) {  // its page of code stands over its ELF header alone
      munmap(text, size);
      map_file(library, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, header, 4096, 4096);
      printf("%p\n", (void*)(header - 4096));
    } else if (!strcmp(how, "headless")) {
      mprotect(header, 4096, PROT_NONE);
      printf("%p\n", (void*)header);
    } else if (!strcmp(how, "no-code")) {  // it may not be executed just now
      mprotect(text, size, PROT_READ);
      printf("%p\n", (void*)header);
    } else if (!strcmp(how, "anonymous")) {  // an ELF header in memory of no file
      char* copy = mmap(NULL, 65536, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      memcpy(copy, header, 4096);
      printf("%p\n", (void*)header);
    } else if (!strcmp(how, "cut")) {  // what is mapped is no more
      if (truncate(library, 4096)) return 1;
      printf("%p\n", (void*)header);
    } else if (!strcmp(how, "half")) {  // its code ends with the page of its first function
      munmap(text + 4096, size - 4096);
      printf("%p\n", (void*)header);
    } else if (!strcmp(how, "plain") || !strcmp(how, "implied")) {
      printf("%p\n", (void*)header);
    } else if (!strcmp(how, "restless")) {  // mappings come and go
      printf("%p\n", (void*)header);
      fflush(stdout);
      for (;;) {
        char* at = map_file(library, PROT_READ | PROT_EXEC, MAP_PRIVATE, NULL, 8192, 4096);
        mprotect(at, 4096, PROT_READ);
        munmap(at, 8192);
      }
    } else {
      return 2;
    }
  }
  if (strcmp(how, "moved") && strcmp(how, "whole")) printf("ready\n");
  fflush(stdout);
  for (;;) pause();
}
