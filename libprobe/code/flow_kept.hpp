// What of a function's code is data, or has an address that means something: from the references
// and uses that were found for it.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "libprobe/code/code_uses.hpp"
#include "libprobe/code/flow_ranges.hpp"
#include "libprobe/code/flow_scan.hpp"
#include "libprobe/code/kept_code.hpp"

namespace reprobe {

struct KeptQuestion {
  CodeRange range;                        // of the function
  std::span<const CodeInstruction> code;  // of the range
  std::span<const Reference> references;  // into the range and to its end
  std::span<const CodeUse> uses;          // into the range; of patched code also before it
  // Tables that the function's jumps read: words in them are labels and nothing else.
  std::span<const CodeRange> label_tables;
  bool jumps_to_labels{};  // the function has an indirect jump: its own labels are for that
  bool end_is_function{};  // another function starts at the range's end
  // The instruction that holds the byte; nullptr where the code there is not known. Valid until the
  // next call.
  std::function<const CodeInstruction*(VirtAddr)> holder_of;
  // The function that holds the byte, where it is known.
  std::function<std::span<const CodeInstruction>(VirtAddr)> function_of;
  std::function<bool(VirtAddr)> is_own_code;  // of the function or of one of its parts
};

struct FoundKept {
  std::vector<KeptCode> kept;
  bool holds_data{};  // FunctionFlow::holds_data
};

[[nodiscard]] FoundKept find_kept_code(const KeptQuestion& question);

// Is the instruction that holds the use's byte the one that reads or writes there?
[[nodiscard]] bool is_operand(const CodeInstruction& holder, const CodeUse& use);

// Of a reference that was found as four bytes in code: they are an immediate or an absolute operand
// of the instruction.
[[nodiscard]] bool states_address(const CodeInstruction& code, VirtAddr address);

}  // namespace reprobe
