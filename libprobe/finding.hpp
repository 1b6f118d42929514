// What the audit reports. Malformed input becomes a finding wherever the rest can still be read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace reprobe {

enum class Severity { note, warning, error };

struct Finding {
  std::string rule;  // stable name, documented in docs/rules.md
  Severity severity{Severity::note};
  std::string provider;  // empty: the finding is about the file
  std::string name;
  std::optional<std::uint64_t> site;         // virtual address
  std::optional<std::uint64_t> note_offset;  // bytes from the start of the file
  std::string message;
  std::vector<std::string> evidence;
  std::string hint;
};

}  // namespace reprobe
