// What LIEF sees in two files. To be called in a process that may crash.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "libprobe/verify/second_opinion.hpp"

namespace reprobe {

// Says "before" or "after" when LIEF begins to read that file.
using ReadingNow = std::function<void(const char* which)>;

// One line for each difference, at most kMaxDifferences and a last line that counts the rest.
// Lines are printable ASCII. Throws whatever LIEF throws, and std::runtime_error where LIEF gives
// no file.
constexpr std::size_t kMaxDifferences = 100;
[[nodiscard]] std::vector<std::string> lief_differences(const std::string& before,
                                                        const std::string& after,
                                                        const ExpectedChanges& expected,
                                                        const ReadingNow& reading);

}  // namespace reprobe
