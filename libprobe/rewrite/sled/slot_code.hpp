// The process's part of a sled: it tests the counter of attachments in the site's slot, and calls
// through the slot where it is not 0. No code is ever written; flags, registers and the red zone
// are as they were. x86-64. docs/format.md has the slot, docs/runtime.md why these instructions.
#pragma once

#include <vector>

#include "libprobe/elf/bytes.hpp"
#include "libprobe/error.hpp"

namespace reprobe {

// Bytes of it in which the stack pointer is `lower` bytes lower than at the site.
struct SlotPart {
  std::uint64_t size{};
  std::int64_t lower{};
};

// A slot: 32 bits that count attachments, 32 that are 0, the address to call, an argument for it.
inline constexpr std::uint64_t kSlotSize = 24, kSlotEntry = 8, kSlotArgument = 16;
// Slots stand in pages of their own: the runtime makes these writable, and nothing else with them.
inline constexpr std::uint64_t kSlotPage = 4096;

// What stands behind the kernel's part of the sled. Where the flags are used behind the site the
// test keeps them, and the call stands in it; elsewhere it is behind the stub (slot_call).
[[nodiscard]] const std::vector<SlotPart>& slot_test_parts(bool keeps_flags);
// `call`: where that call stands. Error refused: more than 2 GiB.
[[nodiscard]] Result<Bytes> slot_test(VirtAddr at, VirtAddr slot, bool keeps_flags, VirtAddr call);

// The call out of line, which goes on at `back`; no parts and no bytes where the test has it.
[[nodiscard]] const std::vector<SlotPart>& slot_call_parts(bool keeps_flags);
[[nodiscard]] Result<Bytes> slot_call(VirtAddr at, VirtAddr slot, bool keeps_flags, VirtAddr back);

[[nodiscard]] std::uint64_t size_of(const std::vector<SlotPart>& parts);

}  // namespace reprobe
