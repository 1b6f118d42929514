#include "libprobe/verify/check_index.hpp"

#include <algorithm>
#include <utility>

#include "libprobe/audit/index_probes.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {

void check_index(const ElfFile& file, const ProbeFile& probes, std::vector<Finding>& out) {
  // Notes that are gone can be written from it.
  if (std::ranges::none_of(file.sections(), holds_notes)) return;
  if (auto why = index_contradiction(file, probes)) {
    out.push_back(verify_finding("verify-index", std::move(*why)));
  }
}

}  // namespace reprobe
