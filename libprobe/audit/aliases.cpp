#include "libprobe/audit/aliases.hpp"

#include <map>

#include "libprobe/code/functions.hpp"

namespace reprobe {

void list_aliases(ProbeFile& file) {
  std::map<CodeAddress, std::vector<std::size_t>> by_site;
  for (std::size_t i = 0; i < file.probes.size(); ++i) {
    Probe& probe = file.probes[i];
    probe.alias_count = probe.alias_of = 0;
    if (probe.verdict == Verdict::dangling) continue;
    by_site[{probe.site, probe.note.location_section}].push_back(i);
  }
  for (const auto& [site, members] : by_site) {
    if (members.size() < 2) continue;
    for (const std::size_t i : members) {
      file.probes[i].alias_count = members.size() - 1;
      file.probes[i].alias_of = members.front();
    }
  }
}

}  // namespace reprobe
