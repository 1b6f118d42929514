// What a tracer's script asks of the probes of files: its USDT attach points, and the arguments
// that each clause reads. Two forms are read: bpftrace's language, and a list of `provider:name`,
// one a line, as perf scripts have it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "libprobe/error.hpp"

namespace reprobe {

// argN, counted from 0.
struct ScriptArgument {
  unsigned index{};
  std::size_t line{};
  bool as_string{};  // str(argN): read as a pointer to text
};

struct ScriptProbe {
  std::string text;  // as the script has it
  std::size_t line{};
  std::string path;      // "": not said
  std::string provider;  // these two may be patterns (fnmatch)
  std::string name;
};

// Attach points that share a predicate and an action.
struct ScriptClause {
  std::vector<ScriptProbe> probes;  // the USDT ones; may be empty
  std::vector<ScriptArgument> arguments;
};

// Errors: malformed, with "line N" as where.
[[nodiscard]] Result<std::vector<ScriptClause>> read_tracer_script(std::string_view text);

}  // namespace reprobe
