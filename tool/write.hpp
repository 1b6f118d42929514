// What the commands that rewrite a file have in common.
#pragma once

#include <string>
#include <utility>

#include "reprobe/reprobe.hpp"
#include "tool/exit_code.hpp"
#include "tool/json.hpp"
#include "tool/options.hpp"

namespace reprobe {

// Says why a rewrite did not come about, with --json on stdout too; gives the exit status.
[[nodiscard]] int report_failure(const RewriteOptions& options, const Error& error,
                                 const Terminal& terminal);

// What every plan's JSON begins with.
[[nodiscard]] Json plan_head(const RewriteOptions& options, const Plan& plan);
// Its `index`: what became of the file's index; left out where it has none.
void add_index(Json& plan, const RenewedIndex& index);
// Its `build_id`; nothing where neither file has one, and `before` is null where the input has
// none. `new_id` is "" where the rewrite keeps it.
void add_build_id(Json& plan, const ElfFile& file, const std::string& new_id = "");

// Says that the index (.note.reprobe) followed the notes, and warns where it could not.
void say_index(const std::string& path, const RenewedIndex& index, const Terminal& terminal);

// Of --dry-run: a line for each edit and for what is appended.
void print_edits(const Plan& plan);

// What is said before the result is written, and of the way there.
void say_warnings(const std::string& path, const ElfFile& file,
                  const std::vector<std::string>& warnings, const Terminal& terminal);
void say_remarks(const std::vector<Remark>& remarks, const Terminal& terminal);

// A rewrite has been made: what fails after it must not pass for a rewrite that failed.
void note_written(const RewriteOptions& options, const Plan& plan);
// "; app: the new file is in place", or "" where none was made.
[[nodiscard]] const std::string& written_note();

// The course of every command that rewrites a file. `command` is what is its own:
//   plan(input, terminal)             Result<Planned<...>>; nothing is written yet
//   describe(json, file, planned)     adds to the plan's JSON what follows the head
//   print(planned)                    --dry-run: lines before those of the edits
//   say(planned, file, terminal)      what was done; gives the exit code
template <typename Command>
int run_rewrite(const RewriteOptions& options, Command command) {
  const Terminal terminal(options.common.color, options.common.quiet, options.common.verbose);
  const auto run = [&]() -> Result<int> {
    const auto input = open_input(options.file, options.payload);
    if (!input) return tl::unexpected(input.error());
    const auto planned = command.plan(*input, terminal);
    if (!planned) return tl::unexpected(planned.error());
    say_warnings(options.file, input->file, planned->warnings, terminal);
    const auto remarks = commit(*input, *planned, options.write);
    if (!remarks) return tl::unexpected(remarks.error());
    note_written(options, planned->plan());
    say_remarks(*remarks, terminal);
    if (options.common.json) {
      Json json = plan_head(options, planned->plan());
      command.describe(json, input->file, *planned);
      print_json(json);
    } else if (options.write.dry_run) {
      command.print(*planned);
      print_edits(planned->plan());
    }
    return command.say(*planned, input->file, terminal);
  };
  const auto result = run();
  if (result) return *result;
  return report_failure(options, result.error(), terminal);
}

// sled --undo and guards --to restore.
int run_undo(const RewriteOptions& options, UndoRequest::Of what);

}  // namespace reprobe
