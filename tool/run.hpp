// `reprobe run`: a program with sleds, the agent in it, and what that counted.
#pragma once

#include <string>
#include <vector>

#include "tool/options.hpp"

namespace CLI {
class App;
}

namespace reprobe {

struct RunOptions {
  CommonOptions common;
  bool count{};  // what is done without --trace and --hist, too
  bool trace{};
  std::string hist;     // "A..B"; "": none
  std::string output;   // "": stderr
  unsigned follow{10};  // milliseconds; 0: nobody looks for libraries that are opened
  std::vector<std::string> libraries;  // that the program opens itself
  std::vector<std::string> command;    // the program and its arguments
};

void add_run(CLI::App& app, RunOptions& options);
// Its exit code: that of the program.
int run_program(const RunOptions& options);

// A copy of a file with sleds of the kind slot, in the user's cache; the file itself where it has
// such sleds, or no probes, or no copy can be made (then `why` says so).
struct ProgramCopy {
  std::string path;
  std::string why;
};
[[nodiscard]] ProgramCopy sledded_copy(const std::string& file, const std::string& name);

// Does a file have probes?
[[nodiscard]] bool has_probes(const std::string& file);

}  // namespace reprobe
