// For which kernels a file is judged: some rules are about what certain versions of Linux do.
#pragma once

#include <compare>
#include <optional>
#include <string_view>

namespace reprobe {

struct KernelVersion {
  unsigned major{};
  unsigned minor{};
  auto operator<=>(const KernelVersion&) const = default;
};

// "6.18", "7.2-rc1", "6.1.0-13-amd64" (uname -r). Nothing where it does not begin so.
[[nodiscard]] std::optional<KernelVersion> parse_kernel(std::string_view text);

// Nothing: all that are in use.
using Kernels = std::optional<KernelVersion>;

// Is one of `kernels` in [from, to]?
[[nodiscard]] bool any_of(const Kernels& kernels, KernelVersion from, KernelVersion to);

// uprobes.c, can_optimize: a five-byte nop becomes a call, in one's own memory alone (VM_DONTCOPY).
[[nodiscard]] bool make_calls_of_nop5(const Kernels& kernels);
// From 7.2 on a ten-byte nop does, and no site with its segment prefix is refused.
[[nodiscard]] bool refuse_nop10(const Kernels& kernels);
// bpf_get_attach_cookie(), since 5.15: without it libbpf counts sites (BPF_USDT_MAX_IP_CNT).
[[nodiscard]] bool lack_cookies(const Kernels& kernels);

}  // namespace reprobe
