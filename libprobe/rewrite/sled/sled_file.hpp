// All that `reprobe sled` does to a file: sleds for one that has none, more or others for one that
// has some.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libprobe/rewrite/sled/sled.hpp"

namespace reprobe {

struct SledRequest {
  // "provider:name" globs: only these probes get sleds, besides those that have some. Empty: all.
  std::vector<std::string> patterns{};
  std::optional<SledKind> kind{};  // nothing: nop10, or what the file's sleds are
  GuardMode guard{GuardMode::automatic};
  bool debuggable{};  // SledOptions
  bool allow_fork{};  // nop5 sleds in a program that forks, too
};

struct SleddedFile {
  SledResult result;  // its plan is one for the file that is there
  ProbeFile probes;   // of the file that the sleds are planned for
  // That file, where it is another: the original of one that has sleds already.
  std::shared_ptr<const ElfFile> original;
};

// Where a file has the sleds that are asked for, the result says so (`already`) and the plan is
// empty. Errors: those of plan_sleds() and earlier_sleds(), refused (nop5 in a program that forks).
[[nodiscard]] Result<SleddedFile> plan_sled_file(const ElfFile& file, const SledRequest& request);

}  // namespace reprobe
