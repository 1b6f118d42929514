/* A program with a library, threads, a forked child that passes probes and does not return from
 * main, and an executed one. Argument: passes. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sdt.h>
#include <sys/wait.h>
#include <unistd.h>

int library_call(int a);
static long passes;

static void* work(void* name) {
  for (long i = 0; i < passes; ++i) DTRACE_PROBE2(family, pass, i, name);
  return 0;
}

int main(int argc, char** argv) {
  passes = argc > 1 ? atol(argv[1]) : 10;
  pthread_t threads[4];
  for (int i = 0; i < 4; ++i) pthread_create(&threads[i], 0, work, "thread");
  for (int i = 0; i < 4; ++i) pthread_join(threads[i], 0);
  const pid_t child = fork();
  if (child == 0) {
    work("child");
    for (int i = 0; i < 5; ++i) library_call(i);
    _exit(0);
  }
  waitpid(child, 0, 0);
  if (argc < 3) {
    const pid_t other = vfork();
    if (other == 0) {
      execl(argv[0], argv[0], argv[1], "again", (char*)0);
      _exit(1);
    }
    waitpid(other, 0, 0);
  }
  library_call(1);
  DTRACE_PROBE(family, never_in_the_glob);
  puts("done");
  return argc < 3 ? 3 : 0;
}
