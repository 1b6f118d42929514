// Keeps the index of a file true when a rewrite changes its notes.
#pragma once

#include <functional>
#include <string>

#include "libprobe/audit/probe.hpp"
#include "libprobe/notes/index.hpp"
#include "libprobe/rewrite/plan.hpp"

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

// Adds to a plan what makes the index say what the notes of the plan's output say. An index of some
// of the probes goes on with those names. Notes that are gone altogether leave it as it is: they
// can be written from it. Errors: refused (an index of another version), malformed (one that cannot
// be read), internal.
[[nodiscard]] Result<RenewedIndex> renew_index(Plan& plan, const ElfFile& file);

// The same for notes that the plan's output does not have yet: `wanted` is what they will say.
[[nodiscard]] Result<RenewedIndex> renew_index(Plan& plan, const ElfFile& file,
                                               const IndexPlace& place, const ProbeIndex& old,
                                               const Result<ProbeIndex>& wanted);

// Whether an index of some of the probes has a probe of that name; all of another.
[[nodiscard]] std::function<bool(const Probe&)> selection_of(const ProbeIndex& index);

}  // namespace reprobe
