// Stubs in a finished file: code in the room that the file is given, unwind tables beside it, and
// .debug_frame for debuggers.
#pragma once

#include <functional>
#include <vector>

#include "libprobe/code/unwind.hpp"
#include "libprobe/elf/file.hpp"
#include "libprobe/plan/plan.hpp"
#include "libprobe/rewrite/layout.hpp"
#include "libprobe/rewrite/section_table.hpp"

namespace reprobe {

struct StubCode {
  Bytes code;
  std::vector<Stub> unwind;  // of each stub; pieces and their sizes do not depend on the address
};

struct StubRequest {
  // The stubs at an address: called for a draft first, then for the address that they get.
  std::function<Result<StubCode>(VirtAddr)> at;
  VirtAddr draft;  // any address near the code
  Size most;       // an upper bound of StubCode::code, not 0
  Size slots{};    // bytes of zeros before the code, in whole pages of their own
};

// Plans all of it; the plan has appended nothing yet. Gives the room from the code on. Errors: refused (no room, unwind tables that cannot be written, a compressed
// .debug_frame), internal.
[[nodiscard]] Result<Room> place_stubs(Plan& plan, SectionTable& headers, const ElfFile& file,
                                       UnwindWriter& unwind, const StubRequest& request);

}  // namespace reprobe
