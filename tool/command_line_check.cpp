#include "libprobe/tracers/consumers.hpp"
#include "tool/check_script.hpp"
#include "tool/command_line.hpp"

namespace reprobe {

void add_check(CLI::App& app, CheckScriptOptions& options) {
  CLI::App& command = *app.add_subcommand("check", "find what a tracer's script asks in vain");
  command.footer(
      "Exit: 0 the files have all that the script asks for, 1 they have not, 3 a file could not\n"
      "be read.\n"
      "\n"
      "Examples:\n"
      "  reprobe check slow.bt -- build/server\n"
      "  reprobe check --root /srv/image slow.bt -- /srv/image/usr/bin/server\n"
      "  reprobe check probes.txt -- lib/*.so    # a list of provider:name, one a line");
  add_common(command, options.common);
  command.remove_option(command.get_option("--probe"));  // the script says which
  command
      .add_option("--root", options.root,
                  "the script's absolute paths are those of the system under this folder")
      ->type_name("DIR")
      ->check(CLI::ExistingDirectory);
  const auto consumers = consumer_names();
  command.add_option("--consumer", options.tracer, "the tracer that will run the script")
      ->type_name("NAME")
      ->check(CLI::IsMember(std::vector<std::string>(consumers.begin(), consumers.end())))
      ->default_str("bpftrace");
  command.add_option("SCRIPT", options.script, "a script of bpftrace, or a list of provider:name")
      ->required();
  command.add_option("FILE", options.files, "the files that it will be used with")->required();
}

}  // namespace reprobe
