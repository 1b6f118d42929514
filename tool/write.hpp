// What the commands that rewrite a file have in common.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "libprobe/elf/file.hpp"
#include "libprobe/elf/payload.hpp"
#include "libprobe/probes/probe.hpp"
#include "libprobe/rewrite/commit.hpp"
#include "libprobe/rewrite/index/renew.hpp"
#include "tool/check.hpp"
#include "tool/json.hpp"
#include "tool/options.hpp"

namespace reprobe {

struct Input {
  FileStamp stamp;                 // of the file before it was read
  ElfFile file;                    // what is rewritten: without the payload, unless that is ignored
  std::optional<ElfFile> whole{};  // the file with the payload, where `file` is without
  std::optional<Payload> payload{};  // behind `file` in `whole`

  [[nodiscard]] const ElfFile& with_payload() const { return whole ? *whole : file; }
};
[[nodiscard]] Result<Input> open_input(const WriteOptions& options);

// Writes the plan's result as the options say, once `check` has seen it; nothing with --dry-run.
// With -o an unchanged file is copied, so that a build step always finds its output. Errors: those
// of check_committable(), with --dry-run too, and of commit(); refused where the plan moves the end
// of the file and a payload stands there that may not move with it.
[[nodiscard]] Result<void> write_output(
    const WriteOptions& options, const Plan& plan, const Input& input,
    const std::function<Result<void>(const std::filesystem::path&)>& check);

// The same, with the result checked before it takes the file's place (check_result).
[[nodiscard]] Result<void> write_checked(const WriteOptions& options, const Plan& plan,
                                         const Input& input, const CheckOptions& check,
                                         const Terminal& terminal);

// Which probes -p chooses; empty without -p. `common` must outlive it.
[[nodiscard]] std::function<bool(const Probe&)> selection(const CommonOptions& common);

// Says why a rewrite did not come about, with --json on stdout too; gives the exit status.
[[nodiscard]] int report_failure(const WriteOptions& options, const CommonOptions& common,
                                 const Error& error, const Terminal& terminal);

// What every plan's JSON begins with.
[[nodiscard]] Json plan_head(const WriteOptions& options, const Plan& plan);
// Its `build_id`; nothing where neither file has one, and `before` is null where the input has
// none. `new_id` is "" where the rewrite keeps it.
void add_build_id(Json& plan, const ElfFile& file, const std::string& new_id = "");

// Warns of an index (.note.reprobe) that could not follow the notes.
void say_index(const std::string& path, const RenewedIndex& index, const Terminal& terminal);

// The `index` of a plan's JSON: what became of the file's index; null where it has none.
[[nodiscard]] Json index_json(const RenewedIndex& index);

// Warns where the plan gives the file headers that patchelf would overwrite the file with.
void warn_of_patchelf(const std::string& path, const ElfFile& file, const Plan& plan,
                      const Terminal& terminal);

// Of --dry-run: a line for each edit and for what is appended.
void print_edits(const Plan& plan);

}  // namespace reprobe
