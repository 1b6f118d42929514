/* uprobe_multi FILE OFFSET,OFFSET... COMMAND [ARGUMENT...]: runs the command while one BPF link (Linux 6.6) holds
 * uprobes at all these offsets of the file, and says at the end "hits: N" of all processes together. One link goes
 * away at once, where thousands of uprobe events take minutes. */
#include <linux/bpf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 4096 };

static int bpf(enum bpf_cmd command, void* attributes, unsigned size) {
  return (int)syscall(SYS_bpf, command, attributes, size);
}

static uint64_t address(const void* at) { return (uint64_t)(uintptr_t)at; }

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  static uint64_t offsets[MOST];
  uint32_t count = 0;
  for (char* at = strtok(argv[2], ","); at && count < MOST; at = strtok(NULL, ",")) offsets[count++] = strtoull(at, NULL, 16);
  /* <linux/bpf.h> of Debian 12 knows no uprobe_multi: the attributes as words of 64 bits (struct bpf_attr of 6.6). */
  uint32_t map_create[64] = {BPF_MAP_TYPE_ARRAY, 4, 8, 1};
  const int map = bpf(BPF_MAP_CREATE, map_create, sizeof map_create);
  const struct bpf_insn code[] = {
      {BPF_ST | BPF_MEM | BPF_W, BPF_REG_10, 0, -4, 0},
      {BPF_ALU64 | BPF_MOV | BPF_X, BPF_REG_2, BPF_REG_10, 0, 0},
      {BPF_ALU64 | BPF_ADD | BPF_K, BPF_REG_2, 0, 0, -4},
      {BPF_LD | BPF_DW | BPF_IMM, BPF_REG_1, BPF_PSEUDO_MAP_FD, 0, map},
      {0, 0, 0, 0, 0},
      {BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_map_lookup_elem},
      {BPF_JMP | BPF_JEQ | BPF_K, BPF_REG_0, 0, 2, 0},
      {BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_1, 0, 0, 1},
      {BPF_STX | BPF_ATOMIC | BPF_DW, BPF_REG_0, BPF_REG_1, 0, BPF_ADD},
      {BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_0, 0, 0, 0},
      {BPF_JMP | BPF_EXIT, 0, 0, 0, 0},
  };
  union {
    uint32_t words[36];
    struct {
      uint32_t type, count;
      uint64_t code, license;
      uint32_t level, log_size;
      uint64_t log;
      uint32_t kernel, flags;
      char name[16];
      uint32_t device, attach_type;
    };
  } load = {{0}};
  load.type = BPF_PROG_TYPE_KPROBE;
  load.count = sizeof code / sizeof *code;
  load.code = address(code);
  load.license = address("GPL");
  load.attach_type = 48; /* BPF_TRACE_UPROBE_MULTI */
  const int program = bpf(BPF_PROG_LOAD, &load, sizeof load);
  union {
    uint32_t words[16];
    struct {
      uint32_t program, target, attach_type, flags;
      uint64_t path, offsets, counters, cookies;
      uint32_t count, multi_flags, pid;
    };
  } link = {{0}};
  link.program = (uint32_t)program;
  link.attach_type = 48;
  link.path = address(argv[1]);
  link.offsets = address(offsets);
  link.count = count;
  const int attached = bpf(BPF_LINK_CREATE, &link, sizeof link);
  if (map < 0 || program < 0 || attached < 0) {
    perror("bpf");
    return 3;
  }
  const pid_t pid = fork();
  if (pid == 0) {
    execv(argv[3], argv + 3);
    _exit(127);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  uint32_t key = 0;
  uint64_t hits = 0;
  uint64_t lookup[4] = {(uint32_t)map, address(&key), address(&hits), 0};
  if (bpf(BPF_MAP_LOOKUP_ELEM, lookup, sizeof lookup)) return 3;
  printf("hits: %llu\n", (unsigned long long)hits);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 4;
}
