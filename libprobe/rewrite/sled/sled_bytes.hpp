// The bytes of a sled, x86-64. What the kernel and libbpf make of them: docs/sleds.md.
#pragma once

#include "libprobe/elf/bytes.hpp"
#include "libprobe/rewrite/sled/planner.hpp"

namespace reprobe {

// Bytes below the stack pointer that a leaf function may use (System V ABI, x86-64, 3.2.2).
inline constexpr std::int64_t kRedZone = 128;

// A sled and its place in what is emitted for it: a guard stands before and behind. Of a slot the
// kernel's part.
struct SledBytes {
  Bytes bytes;
  std::uint64_t note{};  // offset of the byte that the note names
};
[[nodiscard]] SledBytes sled_bytes(SledKind kind, bool guarded);

// Of the sled without a guard.
[[nodiscard]] Size sled_size(SledKind kind);

// Does the multi-byte nop of a sled whose note is `at` lie in one page? The kernel replaces no
// other (Linux arch/x86/kernel/uprobes.c, can_optimize).
[[nodiscard]] bool sled_fits_page(SledKind kind, VirtAddr at);

// `size` bytes that do nothing, in as few instructions as there are.
[[nodiscard]] Bytes filler_nops(std::uint64_t size);

}  // namespace reprobe
