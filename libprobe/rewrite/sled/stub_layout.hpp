// Where each stub stands: behind one another, in an order in which int3 bytes fall into the
// operands of the jumps to them where breakpoints may be set.
#pragma once

#include <vector>

#include "libprobe/rewrite/sled/planner.hpp"

namespace reprobe {

struct StubSize {
  std::uint64_t size{};
  // Offsets of the bytes that notes name, each with its sled in one page.
  std::vector<std::uint64_t> notes;
};

// What the stubs take at most, with gaps between them.
[[nodiscard]] std::uint64_t most_room(const SledPlan& plan, const std::vector<StubSize>& stubs);

// The address of each stub, from `at` on. Within most_room() behind it every jump whose lowest byte
// alone matters gets its int3, unless gaps would take more than that.
[[nodiscard]] std::vector<VirtAddr> lay_out(const SledPlan& plan, SledKind kind, VirtAddr at,
                                            const std::vector<StubSize>& stubs);

// Do breakpoints at all boundaries of the patch leave its jump to `to` what it is?
[[nodiscard]] bool survives_breakpoints(const Patch& patch, VirtAddr to);

}  // namespace reprobe
