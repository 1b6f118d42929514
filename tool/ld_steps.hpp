// What is done to the output of a link: "fix,sled --kind=nop5,audit".
#pragma once

#include <string>
#include <vector>

#include "libprobe/error.hpp"
#include "tool/terminal.hpp"

namespace reprobe {

// A command and its options; the file comes behind.
using LinkStep = std::vector<std::string>;

inline constexpr const char* kDefaultSteps = "fix,audit";

// Commas separate steps, blanks the words of a step. What follows a comma and is no step's name
// belongs to the option before: "fix --only dangling,base-missing,audit" has two steps.
[[nodiscard]] Result<std::vector<LinkStep>> parse_steps(const std::string& text);

// Runs the steps on the linked `file`, the objects of the link at hand. The first that fails ends
// it, with its exit code: what it printed goes to stderr, and the file is removed.
int run_steps(const std::vector<LinkStep>& steps, const std::string& file,
              const std::vector<std::string>& objects, const Terminal& terminal);

}  // namespace reprobe
