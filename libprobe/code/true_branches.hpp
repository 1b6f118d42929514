// Which branches into a function from code that no FDE and no symbol with a size describes are
// instructions. FunctionFlow takes all of their bytes for branches: start-up code beside a small
// program's functions seems to jump into them. Who has to know what registers hold at an
// instruction, not only that control may arrive there, asks here.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "libprobe/code/flow.hpp"
#include "libprobe/code/flow_ranges.hpp"
#include "libprobe/code/flow_scan.hpp"

namespace reprobe {

class TrueBranches {
 public:
  // Reads what refers into the functions, once. `file` outlives this.
  TrueBranches(const ElfFile& file, std::span<const Function> functions);

  // Takes kTargetForeign from the targets of one of these functions to which only bytes inside
  // other instructions of undescribed code lead: those that a walk over it passes, which begins and
  // ends where the described code does.
  void keep(FunctionFlow& flow);

 private:
  struct Gap {
    VirtAddr start, end;           // between described code
    std::vector<VirtAddr> starts;  // of its instructions
  };

  void read_gaps(const Section& section);
  [[nodiscard]] std::vector<VirtAddr> sources(const FunctionFlow& flow, VirtAddr target) const;
  [[nodiscard]] bool is_instruction(VirtAddr source);

  const ElfFile& file_;
  std::optional<CodeRanges> ranges_;
  References references_;
  std::vector<Gap> gaps_;                                // by start
  std::map<VirtAddr, std::vector<VirtAddr>> described_;  // instructions of described code, by start
};

}  // namespace reprobe
