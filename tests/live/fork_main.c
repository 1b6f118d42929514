/* fork_main LIBRARY|-: passes the probes of legacy_work() in a thread, in forked children (of the program
 * and of a thread), in a program that a child executes, and in a library that is loaded late; says how
 * each process ended. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 10 };
#ifdef LATE
static long (*work)(long);
#else
extern long legacy_work(long n);
static long (*work)(long) = legacy_work;
#endif

static void say(const char* what, int status) {
  if (WIFSIGNALED(status))
    printf("%s: signal %d\n", what, WTERMSIG(status));
  else
    printf("%s: exit %d\n", what, WEXITSTATUS(status));
}

static void fork_one(const char* what, char** execute) {
  int status = 0;
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    if (execute) execv("/proc/self/exe", execute);
    _exit(work(N) > 0 ? 0 : 1);
  }
  waitpid(child, &status, 0);
  say(what, status);
}

static void* thread(void* nothing) {
  (void)nothing;
  work(N);
  fork_one("child of a thread", NULL);
  return NULL;
}

int main(int argc, char** argv) {
#ifdef LATE
  void* library = dlopen(argv[1], RTLD_NOW);
  if (library) *(void**)&work = dlsym(library, "legacy_work");
  if (!library || !work) return 3;
#endif
  const long sum = work(N);
  if (argc > 2) return sum > 0 ? 0 : 1; /* executed */
  for (int i = 0; i < 3; ++i) work(N);
  pthread_t other;
  if (pthread_create(&other, NULL, thread, NULL)) return 2;
  pthread_join(other, NULL);
  fork_one("child", NULL);
  char* again[] = {argv[0], argv[1], "executed", NULL};
  fork_one("executed", again);
  printf("sum %ld\n", sum);
  return 0;
}
