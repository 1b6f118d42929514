// Every check of a counter: what kind of instruction it is, and whether its place allows it to look
// at the site instead. Where one use of a counter is not understood, none may be changed.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "libprobe/code/flow.hpp"
#include "libprobe/rewrite/guards/counter_scan.hpp"
#include "libprobe/rewrite/guards/counters.hpp"

namespace reprobe {

enum class GuardForm {
  compare,  // cmpw $0: of the counter, or of what a register points to
  bit,      // testb $1
  below,    // cmpw $1
  load,     // movzwl, movzbl, movw and their like
  merge,    // orw
  address,  // lea, a load from the GOT, mov $imm: no check, a register points to the counter
};
[[nodiscard]] const char* to_string(GuardForm form);
struct GuardUse {
  CodeInstruction code;
  VirtAddr function;  // its start
  GuardForm form{};
  // Through which the check reaches the counter: base of its operand. Nothing: directly.
  bool through_register{};
  // Of a load: flags from before it are read behind it. Of `below`: more than the carry is read.
  bool flags_live{};
  // It looks at all sites of the probe, not only at the first.
  bool every_site{};
  // Of an address: the GOT, where the register gets the distance from it.
  std::optional<VirtAddr> got;
  // Those it may look at, ascending; one, but for checks that several paths share.
  std::vector<std::size_t> counters;
  std::string reason;  // why it cannot be changed, in stable words; "" where it can
};

// Does what stands for it take the very bytes of the instruction?
[[nodiscard]] constexpr bool fits_in_place(const GuardUse& use) {
  if (use.form == GuardForm::address) return true;
  return (use.form == GuardForm::compare || use.form == GuardForm::bit) && !use.every_site;
}

struct GuardUses {
  std::vector<GuardUse> uses;             // by address
  std::vector<UnknownReference> unknown;  // data, and code that is not understood
};

// `flows` was opened with the addresses of all references (and the probes' sites) as sites;
// `counters` are those that the references count.
[[nodiscard]] GuardUses find_guard_uses(const ElfFile& file, const CodeRanges& ranges,
                                        const FlowReader& flows,
                                        const CounterReferences& references,
                                        std::span<const GuardCounter> counters);

}  // namespace reprobe
