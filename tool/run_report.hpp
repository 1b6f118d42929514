// What `reprobe run` prints of what was counted and traced.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "tool/run_table.hpp"

namespace reprobe {

[[nodiscard]] std::string counts_text(const RunTable& table, bool json);

// A line an event; as JSON in the form that Chromium's about:tracing and Perfetto open.
[[nodiscard]] std::string trace_text(RunTable& table, bool json);

// The two probes of "A..B"; nothing where it is not of that form.
[[nodiscard]] std::optional<std::pair<std::string, std::string>> latency_probes(
    const std::string& text);

// From each hit of the first to the next one of the second in the same thread: how often it took
// how long, by powers of two, and percentiles.
[[nodiscard]] std::string latency_text(RunTable& table, const std::string& from,
                                       const std::string& to, bool json);

}  // namespace reprobe
