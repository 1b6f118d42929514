// The slots of sleds that a runtime in the process switches.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "libprobe/code/flow.hpp"
#include "libprobe/code/flow_ranges.hpp"
#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"
#include "libprobe/verify/compare_code.hpp"

namespace reprobe {

// Sites of a function whose test writes flags that are used behind the site. Rule verify-code.
void compare_slot_flags(const ElfFile& before, const CodeRanges& ranges, const FunctionFlow& flow,
                        std::span<const PassedSlot> passed, std::vector<Finding>& out);

// `passed`: of all functions; `site_of_sled`: sites of the original by the address of their sled. A
// site has one slot and a slot one site, the index of the result says which, and the slots are
// zeros in pages of their own. Rules verify-code, verify-index.
void compare_slots(const ElfFile& after, std::span<const PassedSlot> passed,
                   const std::map<VirtAddr, VirtAddr>& site_of_sled, std::vector<Finding>& out);

}  // namespace reprobe
