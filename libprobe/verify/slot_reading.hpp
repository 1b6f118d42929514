// The test of a slot behind the nops of a sled, and the call that it leads to, as Zydis reads them:
// nothing that the program sees is another behind it, if what is called through the slot keeps
// everything but what lies below the stack pointer. x86-64.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/verify/x86_reading.hpp"

namespace reprobe {

// An instruction of it, with the stack pointer that many bytes lower than before it.
struct SlotStep {
  VirtAddr begin, end;
  std::int64_t lower{};
};

struct SlotReading {
  VirtAddr slot;
  bool keeps_flags{};
  std::vector<SlotStep> steps;  // in the order of the addresses
  VirtAddr next;                // where both ways go on
};

// Nothing where something else stands at `at`, or the slot is none of the file's.
[[nodiscard]] std::optional<SlotReading> read_slot_test(const ElfFile& file, VirtAddr at);

// Is the section of slots what a runtime needs it to be: whole pages that nothing shares, zeros?
// Says what is wrong; nothing where it is right, or there is none.
[[nodiscard]] std::optional<std::string> wrong_slots(const ElfFile& file);

// Bytes of a slot: the counter, the address that is called, and what that is given.
inline constexpr std::uint64_t kReadSlotSize = 24;

}  // namespace reprobe
