// What the comparisons report: every difference that is not proven is an error.
#pragma once

#include <string>
#include <utility>

#include "libprobe/finding.hpp"

namespace reprobe {

// `rule`: of docs/rules.md, "verify-...".
[[nodiscard]] inline Finding verify_finding(std::string rule, std::string message) {
  Finding finding;
  finding.rule = std::move(rule);
  finding.severity = Severity::error;
  finding.message = std::move(message);
  return finding;
}

}  // namespace reprobe
