// The bytes of stubs and of the code that leads to them which are never executed.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"
#include "libprobe/verify/compare_code.hpp"

namespace reprobe {

// Instructions of the original whose change is proven, as [begin, end).
using ProvenCode = std::vector<std::pair<VirtAddr, VirtAddr>>;

// Rule verify-code: where a rewrite changed an instruction and execution does not pass any more, a
// byte is neither int3 nor what it was; or one between stubs is neither int3 nor zero.
void compare_unexecuted(const ElfFile& before, const ElfFile& after, const ProvenCode& proven,
                        std::span<const StandsFor> stands, std::vector<Finding>& out);

}  // namespace reprobe
