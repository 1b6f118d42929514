// How each check is rewritten: in place where the new instructions have room there, otherwise by a
// jump to a stub that holds them, and what had to make room for the jump. The result is data.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "libprobe/code/unwind.hpp"
#include "libprobe/rewrite/guards/check_forms.hpp"
#include "libprobe/rewrite/guards/uses.hpp"

namespace reprobe {

// A step of a stub: an instruction of the original, and which use it is.
struct GuardStep {
  CodeInstruction code;
  std::optional<std::size_t> use;  // index in the uses; nothing: it is only displaced
};

// Bytes [begin, end) of the original become a jump to the stub.
struct GuardStub {
  VirtAddr begin;
  VirtAddr end;
  std::vector<GuardStep> steps;
  std::optional<VirtAddr> resume;  // nothing: its last step ends the block
};

struct GuardPlan {
  std::vector<std::size_t> in_place;  // indices of uses
  std::vector<GuardStub> stubs;       // by `begin`
};

// What a use becomes where it stands or in a stub at `at`.
using GuardBytes = std::function<Result<Bytes>(const GuardUse&, VirtAddr at)>;

// Plans the uses that have no reason against it; sets the reason of those that cannot be rewritten.
// `sites`: all probe sites of the file, ascending. `unwinds`: can the rows of such a stub be
// stated?
[[nodiscard]] GuardPlan plan_guard_code(
    const ElfFile& file, const FlowReader& flows, std::vector<GuardUse>& uses,
    std::span<const VirtAddr> sites, const GuardBytes& bytes,
    const std::function<bool(const std::vector<StubPiece>&)>& unwinds);

struct EmittedGuards {
  Bytes code;
  std::vector<Stub> unwind;                       // of each stub
  std::vector<std::pair<VirtAddr, Bytes>> jumps;  // over the original
};

// The stubs one behind the other from `at` on. Errors: refused (something is too far away).
[[nodiscard]] Result<EmittedGuards> emit_guard_stubs(const ElfFile& file,
                                                     std::span<const GuardStub> stubs,
                                                     std::span<const GuardUse> uses,
                                                     const GuardBytes& bytes, VirtAddr at);

}  // namespace reprobe
