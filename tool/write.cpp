#include "tool/write.hpp"

#include <fmt/format.h>

#include "libprobe/notes/index.hpp"
#include "tool/elf_input.hpp"
#include "tool/exit_code.hpp"

namespace reprobe {
namespace {

std::string written;  // by this run of the tool

struct Undo {
  const RewriteOptions& options;
  UndoRequest request;

  Result<Planned<Undone>> plan(const Input& input, const Terminal&) const {
    return reprobe::plan(input, request);
  }
  void describe(Json& json, const ElfFile& file, const Planned<Undone>& planned) const {
    json["size"] = planned.plan().kept(file.source()).value;
  }
  void print(const Planned<Undone>&) const {}
  int say(const Planned<Undone>&, const ElfFile&, const Terminal& terminal) const {
    terminal.info(fmt::format("{}: {} the original", options.file,
                              options.write.dry_run ? "would give back" : "gave back"));
    return kDone;
  }
};

}  // namespace

Json plan_head(const RewriteOptions& options, const Plan& plan) {
  return {{"schema", "reprobe.plan/1"},
          {"file", options.file},
          {"output", options.write.output ? options.write.output->string() : options.file},
          {"changed", !plan.empty()},
          {"edits", edits_json(plan)}};
}

int report_failure(const RewriteOptions& options, const Error& error, const Terminal& terminal) {
  terminal.error(options.file, error);
  if (options.common.json) {
    Json why = {{"code", name_of(error.code)}, {"message", error.message}};
    if (!error.where.empty()) why["where"] = error.where;
    if (!error.hint.empty()) why["hint"] = error.hint;
    Json document = plan_head(options, Plan{});
    document["error"] = std::move(why);
    print_json(document);
  }
  return exit_code(error.code);
}

void add_index(Json& plan, const RenewedIndex& index) {
  switch (index.fate) {
    case IndexFate::none:
      return;
    case IndexFate::same:
      plan["index"] = {{"fate", "same"}};
      return;
    case IndexFate::renewed:
      plan["index"] = {{"fate", "renewed"}};
      return;
    case IndexFate::emptied:
      plan["index"] = {{"fate", "emptied"}, {"reason", index.why}};
  }
}

void add_build_id(Json& plan, const ElfFile& file, const std::string& new_id) {
  const std::string id = file.build_id();
  if (id.empty() && new_id.empty()) return;
  plan["build_id"] = {{"before", id.empty() ? Json(nullptr) : Json(id)},
                      {"after", new_id.empty() ? id : new_id}};
}

void say_index(const std::string& path, const RenewedIndex& index, const Terminal& terminal) {
  if (index.fate == IndexFate::renewed) terminal.info(path + ": renewed the index");
  if (index.fate != IndexFate::emptied) return;
  terminal.warning(
      fmt::format("{}: [{}] the index is empty now: {}", path, kIndexSection, index.why));
}

void print_edits(const Plan& plan) {
  for (const Edit& edit : plan.edits()) {
    fmt::print("edit {:#x} +{}: {}\n", edit.offset.value, edit.after.size(), edit.why);
  }
  for (const std::string& why : plan.appended_why()) fmt::print("append: {}\n", why);
}

void say_warnings(const std::string& path, const ElfFile& file,
                  const std::vector<std::string>& warnings, const Terminal& terminal) {
  warn_of_problems(path, file, terminal);
  for (const std::string& warning : warnings) terminal.warning(path + ": " + warning);
}

void say_remarks(const std::vector<Remark>& remarks, const Terminal& terminal) {
  for (const Remark& remark : remarks) {
    if (remark.warning) {
      terminal.warning(remark.text);
    } else {
      terminal.detail(remark.text);
    }
  }
}

void note_written(const RewriteOptions& options, const Plan& plan) {
  if (options.write.dry_run || (plan.empty() && !options.write.output)) return;
  written =
      "; " + options.write.output.value_or(options.file).string() + ": the new file is in place";
}

const std::string& written_note() { return written; }

int run_undo(const RewriteOptions& options, UndoRequest::Of what) {
  return run_rewrite(options, Undo{options, {what}});
}

}  // namespace reprobe
