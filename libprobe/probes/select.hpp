// Which probes a user means: globs over "provider:name".
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "libprobe/probes/probe.hpp"

namespace reprobe {

// Does any pattern fit "provider:name" (fnmatch(3))? True where there are no patterns.
[[nodiscard]] bool selected(const std::vector<std::string>& patterns, std::string_view provider,
                            std::string_view name);
[[nodiscard]] bool selected(const std::vector<std::string>& patterns, const Note& note);

// The same as the plans ask for it; empty without patterns, which must outlive it.
[[nodiscard]] std::function<bool(const Probe&)> selection(const std::vector<std::string>& patterns);

}  // namespace reprobe
