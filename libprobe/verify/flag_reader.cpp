#include "libprobe/verify/flag_reader.hpp"

namespace reprobe {
namespace {

// Ways on which the flags live longer than this are none that a compiler makes.
constexpr std::size_t kMostFlagSteps = 4096;

}  // namespace

bool FlagReader::only_reads(ReadFlags flag, VirtAddr from) {
  go_to(from);
  while (!open_.empty()) {
    if (seen_.size() > kMostFlagSteps) return false;
    const VirtAddr at = open_.back();
    open_.pop_back();
    const auto code = read_x86(file_, at);
    if (!code || !step(*code, flag)) return false;
  }
  return true;
}

bool FlagReader::step(const X86Reading& code, ReadFlags flag) {
  if (code.is_call() || code.flow == ReadFlow::ret || code.flow == ReadFlow::trap) return true;
  if (code.flow == ReadFlow::indirect_jump) {
    if (!flow_.complete || !in_function(code.address)) return false;
    for (const CodeTarget& target : flow_.targets) {
      if (flow_.at(target.address) != nullptr) go_to(target.address);
    }
    return true;
  }
  if ((code.flags_read & ~flag) != 0) return false;
  if ((code.flags_written & kStatusFlags) == kStatusFlags) return true;
  if (code.target) {
    const VirtAddr to = *code.target;
    const bool tail_call = !in_function(to) && (ranges_.is_function(to) || ranges_.is_linkage(to));
    if (!tail_call) go_to(to);
  }
  if (!code.ends_block()) go_to(code.end());
  return true;
}

}  // namespace reprobe
