/* host LIBRARY: loads a library, stops for whoever traces it, and calls what it knows to call. */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  void* library = dlopen(argv[1], RTLD_NOW);
  if (library == NULL) {
    printf("host: cannot be loaded: %s\n", dlerror());
    return 1;
  }
  void (*look_at)(const char*) = (void (*)(const char*))dlsym(RTLD_DEFAULT, "look_at");
  if (look_at != NULL) look_at(argv[1]);
  raise(SIGTRAP);
  unsigned (*run)(void) = (unsigned (*)(void))dlsym(library, "fixture_main");
  if (run != NULL) printf("fixture %u\n", run());
  return 0;
}
