// A process to look at. It passes its probes about a thousand times a second and does what it is
// told on stdin, a line each, answering with a line: "fork" (the child does the same until it is
// killed; answers its number), "load FILE", "unload", "exec", "thread", "quit".
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#define _SDT_HAS_SEMAPHORES 1
#include <sys/sdt.h>

unsigned short target_counted_semaphore __attribute__((section(".probes")));
unsigned short target_plain_semaphore __attribute__((section(".probes")));

__attribute__((noinline)) void counted(int i) { STAP_PROBE1(target, counted, i); }
__attribute__((noinline)) void plain(int i) { STAP_PROBE2(target, plain, i, i + 1); }

static void* library;

static void pass(int i) {
  plain(i);
  counted(i);
  void (*hook)(int) = library ? (void (*)(int))dlsym(library, "plugged") : NULL;
  if (hook) hook(i);
}

static void* passes(void* unused) {
  for (int i = 0;; ++i) {
    pass(i);
    usleep(1000);
  }
  return unused;
}

static void obey(char* line, char** argv) {
  line[strcspn(line, "\n")] = 0;
  if (!strcmp(line, "quit")) exit(0);
  if (!strcmp(line, "fork")) {
    const pid_t child = fork();
    if (!child) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      passes(NULL);
    }
    printf("%d\n", child);
  } else if (!strncmp(line, "load ", 5)) {
    library = dlopen(line + 5, RTLD_NOW);
    printf("%s\n", library ? "loaded" : dlerror());
  } else if (!strcmp(line, "unload")) {
    printf("%d\n", dlclose(library));
    library = NULL;
  } else if (!strcmp(line, "thread")) {
    pthread_t thread;
    printf("%d\n", pthread_create(&thread, NULL, passes, NULL));
  } else if (!strcmp(line, "exec")) {
    execv("/proc/self/exe", argv);
    printf("not executed\n");
  }
  fflush(stdout);
}

int main(int argc, char** argv) {
  printf("ready\n");
  fflush(stdout);
  signal(SIGCHLD, argc > 1 ? SIG_DFL : SIG_IGN);
  char line[4096];
  for (int i = 0;; ++i) {
    struct pollfd in = {.fd = 0, .events = POLLIN};
    pass(i);
    if (poll(&in, 1, 1) > 0) {
      if (!fgets(line, sizeof line, stdin)) return 0;
      obey(line, argv);
    }
  }
}
