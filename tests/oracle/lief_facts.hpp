#pragma once

#include <optional>
#include <string>

#include "facts.hpp"

namespace reprobe::oracle {

// LIEF's reading of the file; nothing where it refuses. It may crash or never end: call it in a
// child process only.
std::optional<Lines> lief_facts(const std::string& path);

}  // namespace reprobe::oracle
