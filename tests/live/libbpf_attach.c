// libbpf_attach OBJECT FILE PROVIDER NAME COMMAND [ARG...]
//
// Attaches the program of libbpf_attach.bpf.c to a USDT probe of FILE by libbpf's own rule
// (bpf_program__attach_usdt(), for all processes), runs the command and prints "hits N".
// Exit: 0 attached and the command succeeded; 3 libbpf refused to attach, its message on stderr;
// 1 anything else.
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int run(char** command) {
  pid_t child = fork();
  if (child < 0) return -1;
  if (child == 0) {
    execvp(command[0], command);
    _exit(127);
  }
  int status = 0;
  if (waitpid(child, &status, 0) < 0) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int main(int argc, char** argv) {
  if (argc < 6) {
    fprintf(stderr, "usage: libbpf_attach OBJECT FILE PROVIDER NAME COMMAND [ARG...]\n");
    return 1;
  }
  struct bpf_object* object = bpf_object__open_file(argv[1], NULL);
  if (!object || bpf_object__load(object) != 0) {
    fprintf(stderr, "libbpf_attach: cannot load %s: %s\n", argv[1], strerror(errno));
    return 1;
  }
  struct bpf_program* program = bpf_object__find_program_by_name(object, "count_hit");
  struct bpf_link* link =
      bpf_program__attach_usdt(program, -1 /* all processes */, argv[2], argv[3], argv[4], NULL);
  if (!link) {
    fprintf(stderr, "libbpf_attach: cannot attach to %s:%s: %s\n", argv[3], argv[4],
            strerror(errno));
    bpf_object__close(object);
    return 3;
  }
  int status = run(argv + 5);
  uint32_t key = 0;
  uint64_t hits = 0;
  int hits_map = bpf_object__find_map_fd_by_name(object, "hits");
  if (bpf_map_lookup_elem(hits_map, &key, &hits) != 0) status = -1;
  bpf_link__destroy(link);
  bpf_object__close(object);
  printf("hits %llu\n", (unsigned long long)hits);
  return status == 0 ? 0 : 1;
}
