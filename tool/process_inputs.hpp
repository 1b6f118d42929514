// From --pid to processes, and to the ELF files that they execute.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tool/inputs.hpp"

namespace reprobe {

inline constexpr std::string_view kAllProcesses = "all";

// How often a process is looked at that executes other programs meanwhile.
inline constexpr int kMostLooks = 20;

// `pid`: a number (not looked for) or "all".
[[nodiscard]] Result<std::vector<int>> asked_processes(const std::string& pid);

// Of how many processes what was not permitted.
[[nodiscard]] std::string denied_text(std::size_t count, const std::string& what);

// Each file once, however many processes map it, under the path that a process knows it by.
void for_each_process_elf(const std::string& pid, const InputHandlers& handlers);

}  // namespace reprobe
