// reprobe bench: what a probe costs on this machine, with each kind of sled and without.
#pragma once

#include "tool/options.hpp"

namespace CLI {
class App;
}

namespace reprobe {

struct BenchOptions {
  CommonOptions common;
  unsigned seconds{20};
};

void add_bench(CLI::App& app, BenchOptions& options);
int run_bench(const BenchOptions& options);

}  // namespace reprobe
