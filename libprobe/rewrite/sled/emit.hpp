// The stubs of a plan as bytes at their final addresses, and the bytes that lead to them.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "libprobe/code/unwind.hpp"
#include "libprobe/elf/file.hpp"
#include "libprobe/rewrite/sled/planner.hpp"

namespace reprobe {

// Where one site went.
struct MovedSite {
  VirtAddr sled;         // what the note is to name
  std::int64_t lower{};  // bytes by which %rsp is lower there than at the old site
};

struct EmittedStub {
  VirtAddr start;
  Size size;
  Stub unwind;  // its pieces, for the unwind tables
};

struct EmittedSleds {
  Bytes code;                                // of all stubs, int3 between them
  std::vector<EmittedStub> stubs;            // as in the plan
  std::map<std::uint64_t, MovedSite> sites;  // by old site; not those in place
  // Bytes that replace the original's, by address; `plan.patches` in order.
  std::vector<std::pair<VirtAddr, Bytes>> patches;
  std::set<VirtAddr> unsafe;  // sites with a patch that a breakpoint would break
};

// Bytes of the slots of a plan, whole pages; 0 for other kinds.
[[nodiscard]] Size slots_size(const SledPlan& plan, SledKind kind);

// An upper bound of EmittedSleds::code.
[[nodiscard]] Size stubs_size(const SledPlan& plan, SledKind kind);

// `at`: of the code; the slots stand in the slots_size() bytes before it. Errors: refused
// (something is more than 2 GiB from the stubs), internal.
[[nodiscard]] Result<EmittedSleds> emit_sleds(const ElfFile& file, const SledPlan& plan,
                                              SledKind kind, VirtAddr at);

// The pieces of a stub as the planner knows it, at no address: for UnwindWriter::check().
[[nodiscard]] std::vector<StubPiece> stub_pieces(const StubPlan& stub, SledKind kind);

}  // namespace reprobe
