// Counts the hits of the USDT probes that libbpf_attach.c attaches it to, by their cookie.
// libbpf's headers need the kernel's types before them.
// clang-format off
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <stdbool.h>

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/usdt.bpf.h>
// clang-format on

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 64);
  __type(key, __u32);
  __type(value, __u64);
} hits SEC(".maps");

SEC("usdt")
int count_hit(struct pt_regs* ctx) {
  __u32 key = (__u32)bpf_usdt_cookie(ctx);
  __u64* value = bpf_map_lookup_elem(&hits, &key);
  if (value) __sync_fetch_and_add(value, 1);
  return 0;
}

char LICENSE[] SEC("license") = "GPL";
