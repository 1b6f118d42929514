// The commands that rewrite a file.

#include <string>

#include "tool/command_line.hpp"

namespace reprobe {
namespace {

void add_repairs(CLI::App& command, const char* name, std::vector<std::string>& rules,
                 const char* what) {
  command.add_option(name, rules, what)
      ->type_name("RULE,...")
      ->delimiter(',')
      ->allow_extra_args(false);
}

// FILE and -o; gives the latter.
CLI::Option* add_files(CLI::App& command, RewriteOptions& options) {
  command.add_option("FILE", options.file, "a linked program or shared library")->required();
  return command
      .add_option_function<std::string>(
          "-o,--output", [&options](const std::string& path) { options.write.output = path; },
          "write here instead of in place")
      ->type_name("OUT");
}

// What becomes of the file's attributes.
void add_safety(CLI::App& command, RewriteOptions& options) {
  command.add_flag("--preserve-dates", options.write.preserve_dates, "keep the file's times");
  command
      .add_flag("--break-hardlinks", options.write.break_hardlinks,
                "in place on a file with several names: only this one gets the new contents")
      ->group(kSafety);
  command
      .add_flag("--drop-signature", options.write.drop_signature,
                "rewrite a file with an IMA or EVM signature, without the signature")
      ->group(kSafety);
  command
      .add_flag("--drop-verity", options.write.drop_verity,
                "rewrite a file with fs-verity, without fs-verity")
      ->group(kSafety);
  add_payload(
      command, options.payload, true,
      "data behind the ELF file. keep: they stay its last bytes; ignore: they stay at their "
      "offset; auto: kept where the program is known to look at the end, else refused if "
      "new bytes would get in the way")
      ->group(kSafety);
  add_second_opinion(command, options.write.second_opinion);
}

}  // namespace

void add_fix(CLI::App& app, FixCommandOptions& options) {
  CLI::App& command = *app.add_subcommand("fix", "remove dangling notes and repair the others");
  command.footer(
      "Exit: 0 done or nothing to do, 3 unreadable, 4 refused, 5 could not be written.\n"
      "\n"
      "Examples:\n"
      "  reprobe fix app                      # in place, through a temporary file\n"
      "  reprobe fix old.so -o new.so\n"
      "  reprobe fix --dry-run app            # print what would change\n"
      "  reprobe fix --from-debug app.debug app   # a strip took the notes\n"
      "  reprobe fix app --objects *.o libdemo.a  # what the link was made of tells more\n"
      "  reprobe fix --remove-ambiguous -p 'demo:*' app");
  add_common(command, options.common);
  auto* output = add_files(command, options);
  command.add_flag("--in-place")
      ->description("rewrite FILE itself (the default)")
      ->excludes(output);
  command.add_flag("--dry-run", options.write.dry_run, "print the plan, write nothing");
  command.add_flag("--remove-ambiguous", options.request.remove_ambiguous,
                   "also remove notes that are not proven dangling");
  command.add_flag("--respell", options.request.respell,
                   "write arguments in the spelling that most tracers read");
  auto* upgrade = command.add_flag("--upgrade")
                      ->description(
                          "write notes for the records of SystemTap up to 1.3, in a file without "
                          "notes (the default)");
  command
      .add_flag_callback(
          "--no-upgrade", [&options] { options.request.upgrade = false; },
          "leave the records alone")
      ->excludes(upgrade);
  add_repairs(command, "--only", options.request.only, "make these repairs and no others");
  add_repairs(command, "--skip", options.request.skip, "make all repairs but these");
  add_choice<bool, bool>(
      command, "--build-id", options.request.new_build_id, {{"keep", false}, {"new", true}}, "HOW",
      "keep, or new: compute a new build-id of the same length; a file without one "
      "gets one, which is not loaded")
      ->default_str("keep");
  add_safety(command, options);
  auto* from_debug = command
                         .add_option("--from-debug", options.from_debug,
                                     "bring back the notes that a strip deleted, from the separate "
                                     "debug file or the unstripped twin; auto: the one that the "
                                     "build-id, .gnu_debuglink or debuginfod-find leads to")
                         ->type_name("DEBUG");
  add_objects(command, options.objects)->excludes(from_debug);
  for (const char* other :
       {"--remove-ambiguous", "--build-id", "--only", "--skip", "--respell", "--upgrade"}) {
    from_debug->excludes(other);
  }
}

void add_sled(CLI::App& app, SledCommandOptions& options) {
  CLI::App& command = *app.add_subcommand("sled", "give each probe site a patchable sled (x86-64)");
  command.footer(
      "nop10 is optimised by Linux 7.2 and later and is an ordinary site elsewhere; nop5 by Linux\n"
      "6.17 to 7.1 (and there kills forked children of a traced program: not for servers that "
      "fork).\n"
      "slot is for handlers in the process (libreprobe-rt, reprobe run) and for the kernel as "
      "nop10:\n"
      "the sled tests a word of data; the file gets the index of relativize, too.\n"
      "\n"
      "A file that has sleds keeps them and gets those of -p besides, or all of another --kind.\n"
      "With -o the output is always there: a copy where there is nothing to do.\n"
      "\n"
      "Exit: 0 done or nothing to do, 3 unreadable, 4 refused (in place also: no site could get a\n"
      "sled), 5 could not be written.\n"
      "\n"
      "Examples:\n"
      "  reprobe sled app\n"
      "  reprobe sled --dry-run libfoo.so            # which site, which tactic\n"
      "  reprobe sled --kind=nop5 libfoo.so -o fast.so\n"
      "  reprobe sled --undo app                     # the original, byte for byte");
  add_common(command, options.common);
  add_files(command, options);
  add_choice<std::optional<SledKind>, SledKind>(
      command, "--kind", options.request.kind,
      {{"nop10", SledKind::nop10}, {"nop5", SledKind::nop5}, {"slot", SledKind::slot}}, "KIND",
      "the sled: nop10, nop5, or slot: a nop10 with a test behind it for libreprobe-rt")
      ->default_str("nop10");
  add_choice<GuardMode, GuardMode>(
      command, "--guard", options.request.guard,
      {{"auto", GuardMode::automatic}, {"always", GuardMode::always}, {"never", GuardMode::never}},
      "WHEN",
      "protect the red zone at nop5 sleds: auto (where the function may use it), always or never")
      ->default_str("auto");
  command.add_flag("--allow-fork", options.request.allow_fork,
                   "nop5 sleds in a program that forks, too: traced on Linux 6.17 to 7.1, its "
                   "children die");
  command.add_flag("--debuggable", options.request.debuggable,
                   "no sled where a debugger's breakpoint on old code would break the way to it");
  command.add_flag("--undo", options.undo, "take the sleds out again");
  command.add_flag("--dry-run", options.write.dry_run, "print the plan, write nothing");
  add_safety(command, options);
}

void add_guards(CLI::App& app, GuardsCommandOptions& options) {
  CLI::App& command =
      *app.add_subcommand("guards", "rewrite is-enabled checks, for tracers that raise no counter");
  command.footer(
      "site: code that tests a probe's counter tests the probe's own site instead (x86-64), which "
      "is\n"
      "no nop while anybody traces it; its notes name no counter any more. Of several sites all\n"
      "are looked at where there is room, or the first note's, which the command then says. on: "
      "the\n"
      "counters are 1 from the start, so that the guarded code always runs. restore: the "
      "original,\n"
      "byte for byte.\n"
      "\n"
      "Exit: 0 done or nothing to do, 3 unreadable, 4 refused (or no check could be rewritten), 5\n"
      "could not be written.\n"
      "\n"
      "Examples:\n"
      "  reprobe guards --to site app\n"
      "  reprobe guards --to site --dry-run libfoo.so    # which check, in place or in a stub\n"
      "  reprobe guards --to site --with app libfoo.so   # app checks no counter of libfoo.so's\n"
      "  reprobe guards --to on -p 'python:*' python3 -o python3.traced\n"
      "  reprobe guards --to restore app");
  add_common(command, options.common);
  add_files(command, options);
  add_choice<GuardsCommand, GuardsCommand>(command, "--to", options.to,
                                           {{"site", GuardsCommand::site},
                                            {"on", GuardsCommand::on},
                                            {"restore", GuardsCommand::restore}},
                                           "WHERE", "site, on or restore")
      ->required();
  command
      .add_option(
          "--with", options.with,
          "another file of the program, which may check exported counters; again for more.\n"
          "Counters that none of them refers to are rewritten though they are exported")
      ->type_name("FILE")
      ->allow_extra_args(false);
  command.add_flag("--allow-exported", options.allow_exported,
                   "rewrite checks of exported counters: no other file checks them");
  command.add_flag("--dry-run", options.write.dry_run, "print the plan, write nothing");
  add_safety(command, options);
}

void add_relativize(CLI::App& app, RelativizeCommandOptions& options) {
  CLI::App& command =
      *app.add_subcommand("relativize", "add a loaded index of the probes, which no strip deletes");
  command.footer(
      "The index (.note.reprobe) is read-only and needs no relocation: a program finds its own\n"
      "probes in it, and reprobe fix writes the notes from it once llvm-strip --strip-all deleted\n"
      "them. Again on a file that has one: the index is renewed where the notes changed.\n"
      "\n"
      "Exit: 0 done or nothing to do, 3 unreadable, 4 refused, 5 could not be written.\n"
      "\n"
      "Examples:\n"
      "  reprobe relativize app\n"
      "  reprobe relativize -p 'app:*' libfoo.so -o out.so   # fix gives back these alone\n"
      "  reprobe relativize --dry-run --json app             # what would change\n"
      "  reprobe fix app                                     # later: the notes are back");
  add_common(command, options.common);
  add_files(command, options);
  command.add_flag("--dry-run", options.write.dry_run, "print the plan, write nothing");
  add_safety(command, options);
}

}  // namespace reprobe
