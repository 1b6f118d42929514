// Proves that rewritten functions still do what they did: from every place whose bytes differ,
// execution in the original and in the result passes the same instructions, in the same order,
// until both are at the same place. Nops and direct jumps do nothing but lead on. The instructions
// are read by Zydis (x86_reading.hpp), not by the decoder that the rewrite was planned with; where
// control may arrive is FunctionFlow's to say, and what find_arrivals() adds. x86-64.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "libprobe/code/flow.hpp"
#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"
#include "libprobe/verify/arrivals.hpp"
#include "libprobe/verify/code_walker.hpp"
#include "libprobe/verify/x86_reading.hpp"

namespace reprobe {

// Instructions of the result that may stand for another one of the original. Empty: there are none.
struct Substitutions {
  // Is the instruction of the original at this address one for which others may stand?
  std::function<bool(VirtAddr)> expected;
  // Bytes of the instructions at an address of the result that do what the original's does.
  std::function<std::optional<Size>(const X86Reading& original, VirtAddr now)> size;
};

// What execution passes in the result, nops and jumps, until something is done, and where it is in
// the original meanwhile: but for the stack pointer all registers are the same.
struct StandsFor {
  std::vector<Executed> now;
  std::vector<VirtAddr> old;       // not all of very many
  std::vector<VirtAddr> old_nops;  // all nops of the original
};

struct ComparedCode {
  // Instructions of the original that differ in the result, and the change is proven; ascending,
  // as [begin, end).
  std::vector<std::pair<VirtAddr, VirtAddr>> proven;
  std::vector<Finding> findings;  // rule verify-code
  std::vector<VirtAddr> passed;   // where execution is in the result on the proven ways
  std::vector<StandsFor> stands;  // the same, step by step
  // Site -> bytes by which the stack pointer is lower at its sled than at the site.
  std::map<std::uint64_t, std::int64_t> lower;
  std::vector<PassedSlot> slots;  // a site as often as it is passed
};

// Compares the function of `flow`, which was read from `before`, with what the result has there.
// `site_of` answers for addresses of the original, `sled_of` for those of the result: execution
// must pass them in the same order. `arrivals`: branches of other code into what changed.
[[nodiscard]] ComparedCode compare_code(const FunctionFlow& flow, const ElfFile& before,
                                        const ElfFile& after, const SledOf& site_of,
                                        const SledOf& sled_of,
                                        const Substitutions& substitutions = {},
                                        std::span<const ArrivingBranch> arrivals = {});

}  // namespace reprobe
