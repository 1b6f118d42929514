// breaker PROGRAM ADDRESS...: runs PROGRAM once for each address, with a breakpoint there that is
// stepped over the way a debugger does it (the byte put back, one step, int3 again), for the first 40
// hits. Prints "hits N exit STATUS" behind each run's own output; a signal is STATUS 128 + its number.
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kMostHits = 40, kMostSeconds = 60 };

static void die(const char* what) {
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  exit(2);
}

// What is to be added to the file's addresses: where the kernel put AT_ENTRY, less e_entry.
static uint64_t bias_of(pid_t child, const char* program) {
  char name[64];
  snprintf(name, sizeof name, "/proc/%d/auxv", child);
  uint64_t pair[2], entry = 0;
  int fd = open(name, O_RDONLY);
  while (read(fd, pair, sizeof pair) == sizeof pair)
    if (pair[0] == 9) entry = pair[1];
  close(fd);
  Elf64_Ehdr header;
  fd = open(program, O_RDONLY);
  if (fd < 0 || read(fd, &header, sizeof header) != sizeof header) die(program);
  close(fd);
  return entry - header.e_entry;
}

static uint8_t put(pid_t child, uint64_t at, uint8_t byte) {
  errno = 0;
  const long word = ptrace(PTRACE_PEEKTEXT, child, at, 0);
  if (errno != 0) die("peek");
  if (ptrace(PTRACE_POKETEXT, child, at, (word & ~0xffL) | byte) != 0) die("poke");
  return (uint8_t)word;
}

static void run(const char* program, uint64_t address) {
  const pid_t child = fork();
  if (child == 0) {
    personality(ADDR_NO_RANDOMIZE);
    alarm(kMostSeconds); /* a breakpoint at the wrong place may make it run for ever */
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    execl(program, program, (char*)NULL);
    _exit(127);
  }
  int status;
  waitpid(child, &status, 0);
  const uint64_t at = bias_of(child, program) + address;
  const uint8_t old = put(child, at, 0xcc);
  int hits = 0, deliver = 0, stepping = 0;
  for (;;) {
    ptrace(stepping ? PTRACE_SINGLESTEP : PTRACE_CONT, child, 0, deliver);
    waitpid(child, &status, 0);
    deliver = 0;
    if (!WIFSTOPPED(status)) break;
    struct user_regs_struct registers;
    ptrace(PTRACE_GETREGS, child, 0, &registers);
    if (WSTOPSIG(status) != SIGTRAP) {
      deliver = WSTOPSIG(status);
    } else if (stepping) {
      stepping = 0;
      if (hits < kMostHits) put(child, at, 0xcc);
    } else if (registers.rip == at + 1) {
      ++hits;
      put(child, at, old);
      registers.rip = at;
      ptrace(PTRACE_SETREGS, child, 0, &registers);
      stepping = 1;
    } else {
      deliver = SIGTRAP;
    }
  }
  printf("hits %d exit %d\n", hits, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  fflush(stdout);
}

int main(int argc, char** argv) {
  for (int i = 2; i < argc; ++i) run(argv[1], strtoull(argv[i], NULL, 0));
  return 0;
}
