// Keeps the index of a file true when a rewrite changes its notes.
#pragma once

#include <string>

#include "libprobe/elf/file.hpp"
#include "libprobe/plan/plan.hpp"

namespace reprobe {

enum class IndexFate {
  none,     // the file has no index
  same,     // it says what the notes of the result say
  renewed,  // it is written anew, in its place
  emptied,  // it has no entries any more: what the notes say now, it cannot
};

struct RenewedIndex {
  IndexFate fate{IndexFate::none};
  std::string why;  // of emptied
};

// Adds to a plan what makes the index say what the notes of the output say. `finished`: the plan
// with what is still to come, where that is more. An index of some of the probes goes on with those
// names. Notes that are gone altogether leave it as it is: they can be written from it. Errors:
// refused (an index of another version), malformed (one that cannot be read), internal.
[[nodiscard]] Result<RenewedIndex> renew_index(Plan& plan, const ElfFile& file,
                                               const Plan* finished = nullptr);

}  // namespace reprobe
