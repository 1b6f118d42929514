/* fork_again MAIN PROGRAM [ARGUMENT...]: runs PROGRAM; where it would exit it forks instead, and the child calls
 * main() again, whose address MAIN is (that of a position-independent program counts from its start). So the
 * child passes every probe that the parent has passed, and whatever the kernel has made of it by then. Says how both
 * end: "parent: exit N" or "parent: signal N", and "child: returns N" or "child: signal N". */
#include <elf.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned long first_mapping(pid_t pid) {
  char name[32];
  unsigned long start = 0;
  snprintf(name, sizeof name, "/proc/%d/maps", pid);
  FILE* maps = fopen(name, "r");
  if (!maps || fscanf(maps, "%lx", &start) != 1) exit(3);
  fclose(maps);
  return start;
}

static int is_relocated(const char* path) {
  Elf64_Ehdr header;
  FILE* file = fopen(path, "rb");
  if (!file || fread(&header, sizeof header, 1, file) != 1) exit(3);
  fclose(file);
  return header.e_type == ET_DYN;
}

static void say(const char* who, int status) {
  if (WIFSIGNALED(status))
    printf("%s: signal %d\n", who, WTERMSIG(status));
  else
    printf("%s: exit %d\n", who, WEXITSTATUS(status));
}

/* The child stops once before it runs: main() is called with a return address of 0, where it then faults. */
static void call_main(pid_t child, unsigned long main_at, unsigned long stack, unsigned long arguments) {
  struct user_regs_struct r;
  int status;
  if (waitpid(child, &status, __WALL) != child || !WIFSTOPPED(status)) exit(3);
  ptrace(PTRACE_GETREGS, child, 0, &r);
  const unsigned long count = (unsigned long)ptrace(PTRACE_PEEKDATA, child, (void*)arguments, 0);
  r.rsp = ((stack - 1024) & ~15ul) - 8;
  r.rip = main_at;
  r.rax = 0;
  r.orig_rax = ~0ul;
  r.rdi = count;
  r.rsi = arguments + 8;
  r.rdx = arguments + 8 * (count + 2);
  ptrace(PTRACE_POKEDATA, child, (void*)r.rsp, (void*)0);
  ptrace(PTRACE_SETREGS, child, 0, &r);
  for (int signal = 0;; signal = WSTOPSIG(status) == SIGTRAP || WSTOPSIG(status) == SIGSTOP ? 0 : WSTOPSIG(status)) {
    ptrace(PTRACE_CONT, child, 0, (void*)(long)signal);
    if (waitpid(child, &status, __WALL) != child) exit(3);
    if (!WIFSTOPPED(status)) break;
    ptrace(PTRACE_GETREGS, child, 0, &r);
    if (WSTOPSIG(status) == SIGSEGV && r.rip == 0) {
      printf("child: returns %d\n", (int)r.rax);
      ptrace(PTRACE_KILL, child, 0, 0);
      kill(child, SIGKILL);
      waitpid(child, &status, __WALL);
      return;
    }
  }
  say("child", status);
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const pid_t pid = fork();
  if (pid == 0) {
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    execv(argv[2], argv + 2);
    _exit(127);
  }
  int status;
  struct user_regs_struct r, saved;
  if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status)) return 3;
  ptrace(PTRACE_SETOPTIONS, pid, 0, (void*)(PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEFORK | PTRACE_O_EXITKILL));
  ptrace(PTRACE_GETREGS, pid, 0, &r);
  const unsigned long arguments = r.rsp;
  const unsigned long main_at = strtoul(argv[1], NULL, 16) + (is_relocated(argv[2]) ? first_mapping(pid) : 0);
  int forking = 0;
  for (int signal = 0;;) {
    ptrace(PTRACE_SYSCALL, pid, 0, (void*)(long)signal);
    if (waitpid(pid, &status, 0) != pid) return 3;
    if (!WIFSTOPPED(status)) break;
    signal = 0;
    if (status >> 8 == (SIGTRAP | (PTRACE_EVENT_FORK << 8))) {
      unsigned long child = 0;
      ptrace(PTRACE_GETEVENTMSG, pid, 0, &child);
      call_main((pid_t)child, main_at, saved.rsp, arguments);
    } else if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
      ptrace(PTRACE_GETREGS, pid, 0, &r);
      if (r.orig_rax == 231 && !forking) { /* exit_group */
        saved = r;
        forking = 1;
        r.orig_rax = 57; /* fork */
        ptrace(PTRACE_SETREGS, pid, 0, &r);
      } else if (forking == 1) { /* and again, to exit */
        forking = 2;
        saved.rip -= 2;
        saved.rax = 231;
        saved.orig_rax = ~0ul;
        ptrace(PTRACE_SETREGS, pid, 0, &saved);
      }
    } else if (WSTOPSIG(status) != SIGTRAP) {
      signal = WSTOPSIG(status);
    }
  }
  say("parent", status);
  return 0;
}
