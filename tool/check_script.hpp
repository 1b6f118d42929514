// reprobe check: does a tracer's script still fit the files?
#pragma once

#include <string>
#include <vector>

#include "tool/options.hpp"

namespace CLI {
class App;
}

namespace reprobe {

struct CheckScriptOptions {
  CommonOptions common;
  std::string script;
  std::vector<std::string> files;
  std::string root;                // "": paths of the script are this system's
  std::string tracer{"bpftrace"};  // of consumer_names()
};

void add_check(CLI::App& app, CheckScriptOptions& options);
int run_check_script(const CheckScriptOptions& options);

}  // namespace reprobe
