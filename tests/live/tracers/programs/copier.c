/* copier LIBRARY HITS: takes the library's semaphore into its own .bss by a copy relocation:
 * position-dependent code refers to it by its address. */
#include <stdlib.h>

extern unsigned short traced_guarded_semaphore;
void run(int hits);

int main(int argc, char** argv) {
  run(argc > 2 ? atoi(argv[2]) : 1);
  return traced_guarded_semaphore != 0;
}
