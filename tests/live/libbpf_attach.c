// libbpf_attach OBJECT FILE PROVIDER:NAME... -- COMMAND [ARG...]
//
// Attaches the program of libbpf_attach.bpf.c to USDT probes of FILE by libbpf's own rule
// (bpf_program__attach_usdt(), for all processes), runs the command and prints a line a probe,
// "PROVIDER:NAME hits N" or "PROVIDER:NAME refused"; libbpf's messages are on stderr.
// Exit: 0 the command ran and succeeded; 1 anything else.
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { max_probes = 64 };  // the entries of the map

static int run(char** command) {
  pid_t child = fork();
  if (child < 0) return -1;
  if (child == 0) {
    // The lines of the probes are all there is on stdout.
    dup2(STDERR_FILENO, STDOUT_FILENO);
    execvp(command[0], command);
    _exit(127);
  }
  int status = 0;
  if (waitpid(child, &status, 0) < 0) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static struct bpf_link* attach(struct bpf_program* program, const char* file, const char* probe,
                               uint64_t cookie) {
  char provider[256];
  const char* colon = strchr(probe, ':');
  if (!colon || (size_t)(colon - probe) >= sizeof provider) return NULL;
  snprintf(provider, sizeof provider, "%.*s", (int)(colon - probe), probe);
  LIBBPF_OPTS(bpf_usdt_opts, options, .usdt_cookie = cookie);
  return bpf_program__attach_usdt(program, -1 /* all processes */, file, provider, colon + 1,
                                  &options);
}

int main(int argc, char** argv) {
  int end = 3;
  while (end < argc && strcmp(argv[end], "--") != 0) ++end;
  char** probes = argv + 3;
  int count = end - 3;
  if (end + 1 >= argc || count < 1 || count > max_probes) {
    fprintf(stderr, "usage: libbpf_attach OBJECT FILE PROVIDER:NAME... -- COMMAND [ARG...]\n");
    return 1;
  }
  struct bpf_object* object = bpf_object__open_file(argv[1], NULL);
  if (!object || bpf_object__load(object) != 0) {
    fprintf(stderr, "libbpf_attach: cannot load %s: %s\n", argv[1], strerror(errno));
    return 1;
  }
  struct bpf_program* program = bpf_object__find_program_by_name(object, "count_hit");
  struct bpf_link* links[max_probes];
  for (int i = 0; i < count; ++i) {
    links[i] = attach(program, argv[2], probes[i], (uint64_t)i);
    if (!links[i])
      fprintf(stderr, "libbpf_attach: cannot attach to %s: %s\n", probes[i], strerror(errno));
  }
  int status = run(argv + end + 1);
  int map = bpf_object__find_map_fd_by_name(object, "hits");
  for (int i = 0; i < count; ++i) {
    uint32_t key = (uint32_t)i;
    uint64_t hits = 0;
    if (bpf_map_lookup_elem(map, &key, &hits) != 0) status = -1;
    if (links[i])
      printf("%s hits %llu\n", probes[i], (unsigned long long)hits);
    else
      printf("%s refused\n", probes[i]);
    bpf_link__destroy(links[i]);
  }
  bpf_object__close(object);
  return status == 0 ? 0 : 1;
}
