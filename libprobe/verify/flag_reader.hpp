// What becomes of the flags that an instruction leaves, as Zydis reads the code behind it.
#pragma once

#include <unordered_set>
#include <vector>

#include "libprobe/code/flow.hpp"
#include "libprobe/code/flow_ranges.hpp"
#include "libprobe/verify/x86_reading.hpp"

namespace reprobe {

class FlagReader {
 public:
  FlagReader(const ElfFile& file, const CodeRanges& ranges, const FunctionFlow& flow)
      : file_(file), ranges_(ranges), flow_(flow) {}

  // On every way from there no other flag is read before all have been written anew, or the
  // function is left: flags are dead at calls and returns (System V ABI, x86-64, 3.2.1).
  [[nodiscard]] bool only_reads(ReadFlags flag, VirtAddr from);

 private:
  void go_to(VirtAddr at) {
    if (seen_.insert(at.value).second) open_.push_back(at);
  }
  [[nodiscard]] bool in_function(VirtAddr at) const {
    return at >= flow_.function.start && at < flow_.end();
  }
  [[nodiscard]] bool step(const X86Reading& code, ReadFlags flag);

  const ElfFile& file_;
  const CodeRanges& ranges_;
  const FunctionFlow& flow_;
  std::vector<VirtAddr> open_;
  std::unordered_set<std::uint64_t> seen_;
};

}  // namespace reprobe
