// reprobe in the place of a linker, or of the compiler that calls one.
#pragma once

#include <string>
#include <vector>

namespace reprobe {

// Is the program called by a linker's name ("ld", "ld.lld", ...) or as reprobe-cc? Such calls have
// no options of reprobe's: all words belong to the program behind.
[[nodiscard]] bool is_called_as_linker(const std::string& program);

// Passes the words on to the program behind that name, and runs the steps of REPROBE_STEPS.
int run_as_linker(const std::string& program, const std::vector<std::string>& words);

}  // namespace reprobe
