// The options of the command that runs a program.

#include "tool/command_line.hpp"
#include "tool/run.hpp"

namespace reprobe {

void add_run(CLI::App& app, RunOptions& options) {
  CLI::App& command =
      *app.add_subcommand("run", "run a program and count or trace its probes, in the process");
  command.footer(
      "The program, and libraries that it names and that have probes, run as copies with sleds of\n"
      "the kind slot; the copies are kept in ~/.cache/reprobe. No privilege is needed, and no "
      "kernel\n"
      "feature. Children count too. The table is printed when the program ends, and when this\n"
      "command gets SIGUSR1.\n"
      "\n"
      "Exit: that of the program, 128 and its number after a signal; 2 usage, 3 no such program,\n"
      "4 no agent, 5 the counts could not be written.\n"
      "\n"
      "Examples:\n"
      "  reprobe run -- ./app --fast\n"
      "  reprobe run -p 'app:req*' -o counts.txt -- ./app\n"
      "  reprobe run --trace --json -o trace.json -- ./app\n"
      "  reprobe run --hist app:request..app:reply -- ./app\n"
      "  reprobe run --library plugins/libfoo.so -- ./app   # which it opens itself");
  add_common(command, options.common);
  command.add_flag("--count", options.count,
                   "count the hits of each probe: what is done without --trace and --hist, too");
  command
      .add_flag("--trace", options.trace,
                "write each hit with its time, thread and arguments; with --json as Chromium's and "
                "Perfetto's viewers read it")
      ->excludes("--count");
  command
      .add_option("--hist", options.hist,
                  "from each hit of the first probe to the next one of the second in the same "
                  "thread: how often it took how long")
      ->type_name("A..B")
      ->excludes("--count")
      ->excludes("--trace");
  command.add_option("-o,--output", options.output, "write the table there instead of to stderr")
      ->type_name("FILE");
  command
      .add_option("--library", options.libraries,
                  "a library that the program opens by its name alone; again for more")
      ->type_name("FILE")
      ->allow_extra_args(false);
  command
      .add_option("--follow", options.follow,
                  "milliseconds between looks for libraries that were opened by their names alone; 0: do "
                  "not look, and start no thread in the program")
      ->type_name("MS")
      ->check(CLI::Range(0, 3600000))
      ->default_val(10);
  command.add_option("PROGRAM", options.command, "the program and its arguments, behind --")
      ->required();
}

}  // namespace reprobe
