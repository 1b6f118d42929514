#include "libprobe/probes/select.hpp"

#include <fnmatch.h>

#include <algorithm>

namespace reprobe {

bool selected(const std::vector<std::string>& patterns, std::string_view provider,
              std::string_view name) {
  if (patterns.empty()) return true;
  const std::string full = std::string(provider).append(":").append(name);
  return std::ranges::any_of(patterns, [&](const std::string& pattern) {
    return fnmatch(pattern.c_str(), full.c_str(), 0) == 0;
  });
}

bool selected(const std::vector<std::string>& patterns, const Note& note) {
  return selected(patterns, note.provider, note.name);
}

std::function<bool(const Probe&)> selection(const std::vector<std::string>& patterns) {
  if (patterns.empty()) return {};
  return [&patterns](const Probe& probe) { return selected(patterns, probe.note); };
}

}  // namespace reprobe
