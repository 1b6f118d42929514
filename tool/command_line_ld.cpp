// The options of `reprobe ld`.

#include "tool/command_line.hpp"

namespace reprobe {

void add_ld(CLI::App& app, LdOptions& options) {
  CLI::App& command = *app.add_subcommand("ld", "link with the real linker, then fix and audit");
  command.footer(
      "The whole line is: reprobe ld [STEPS...] -- [LINKER] ARGS...\n"
      "\n"
      "Behind -- stands a linker's command line, which goes to it as it is (lld and mold get\n"
      "besides: -u _.stapsdt.base where --gc-sections would drop that section; for objects with\n"
      "counters -z separate-loadable-segments, or no tracer could raise them). A LINKER without a\n"
      "slash is looked for in COMPILER_PATH and PATH, behind reprobe itself; without one it is\n"
      "REPROBE_LD, or ld. Each step is a command with its options, 'sled --kind=nop5', that runs "
      "on\n"
      "a linked program or shared library. The objects of the link prove which probes are live\n"
      "(--objects). Objects of -r, gold's incremental links and what is not ELF are left alone.\n"
      "\n"
      "Steps say nothing unless they fail or have -v, and do not ask LIEF; audit fails on errors\n"
      "alone unless given --fail-on=warning; sled, guards and relativize pass over a file without\n"
      "probes.\n"
      "\n"
      "--dir prints a folder of linkers' names for compilers that call the linker themselves. "
      "There\n"
      "the environment chooses: REPROBE_STEPS is as 'fix,sled --kind=nop5,audit', empty: nothing "
      "is\n"
      "done; REPROBE_LD is the linker. reprobe-cc is cc with that folder.\n"
      "\n"
      "Exit: the linker's where it fails; else that of the first step that fails, and the output "
      "is\n"
      "removed; 0.\n"
      "\n"
      "Examples:\n"
      "  gcc -B$(reprobe ld --dir) -fuse-ld=lld main.c -o app\n"
      "  clang --ld-path=$(reprobe ld --dir)/ld.lld main.c -o app\n"
      "  cargo build --config 'target.x86_64-unknown-linux-gnu.linker=\"reprobe-cc\"'\n"
      "  REPROBE_STEPS='fix,relativize,audit' make CC=\"gcc -B$(reprobe ld --dir)\"\n"
      "  reprobe ld fix audit -- ld.lld -o app crt1.o main.o -lc");
  auto* folder = command.add_flag("--dir", options.print_folder,
                                  "print the folder for -B, --ld-path and PATH");
  auto* made =
      command
          .add_option("--make-dir", options.new_folder, "make such a folder: links to this program")
          ->type_name("DIR")
          ->excludes(folder);
  command
      .add_option("STEPS", options.steps,
                  "what is done to the output: fix, audit, guards, relativize, sled (default: "
                  "REPROBE_STEPS, or fix and audit)")
      ->excludes(folder)
      ->excludes(made);
  command.callback([&options, folder, made] {
    if (!options.has_words && folder->empty() && made->empty()) {
      throw CLI::RequiredError("-- and the linker's command line");
    }
  });
}

}  // namespace reprobe
