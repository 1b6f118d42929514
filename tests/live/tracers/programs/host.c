/* host LIBRARY HITS: loads the shared object of a fixture and runs it. DEFINES_SEMAPHORE: it has the
 * semaphore that the library does not define. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef DEFINES_SEMAPHORE
__attribute__((visibility("default"), section(".probes"))) unsigned short traced_guarded_semaphore;
#endif

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  void* library = dlopen(argv[1], RTLD_NOW);
  void (*run)(int) = library ? (void (*)(int))dlsym(library, "run") : 0;
  if (!run) {
    fprintf(stderr, "host: %s\n", dlerror());
    return 1;
  }
  run(atoi(argv[2]));
  return 0;
}
