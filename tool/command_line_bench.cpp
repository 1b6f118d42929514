#include "tool/bench.hpp"
#include "tool/command_line.hpp"

namespace reprobe {

void add_bench(CLI::App& app, BenchOptions& options) {
  CLI::App& command =
      *app.add_subcommand("bench", "measure which kind of sled pays on this machine");
  command.footer(
      "Runs loops with a plain nop, with each kind of sled and with a check of a counter; and, as\n"
      "root, with a uprobe at the site whose hits a BPF program counts. x86-64 only.\n"
      "\n"
      "Exit: 0 measured, also where the kernel lets nobody trace (it says so), 4 another machine.\n"
      "\n"
      "Examples:\n"
      "  reprobe bench --seconds 60\n"
      "  reprobe bench --json");
  add_common(command, options.common);
  command.remove_option(command.get_option("--probe"));
  command.add_option("--seconds", options.seconds, "how long, about")
      ->type_name("N")
      ->check(CLI::Range(1, 3600))
      ->default_val(20);
}

}  // namespace reprobe
