#include "tool/write.hpp"

#include <fmt/format.h>

#include "libprobe/notes/index.hpp"
#include "tool/elf_input.hpp"

namespace reprobe {

Result<Input> open_input(const std::string& path) {
  const auto stamp = file_stamp(path);
  auto source = map_input(path);
  if (!source) return tl::unexpected(source.error());
  if (!stamp) return tl::unexpected(stamp.error());
  auto file = open_elf(std::move(*source));
  if (!file) return tl::unexpected(file.error());
  return Input{*stamp, std::move(*file)};
}

Result<void> write_output(const WriteOptions& options, const Plan& plan, const ByteSource& input,
                          const FileStamp& stamp,
                          const std::function<Result<void>(const std::filesystem::path&)>& check) {
  if (plan.empty() && options.output.empty()) return {};
  CommitOptions commit_as;
  commit_as.stamp = stamp;
  commit_as.input = options.file;
  if (!options.output.empty()) commit_as.output = options.output;
  commit_as.allow_hard_links = options.break_hardlinks;
  commit_as.allow_signature = options.drop_signature;
  commit_as.allow_verity = options.drop_verity;
  commit_as.preserve_dates = options.preserve_dates;
  if (auto allowed = check_committable(commit_as); !allowed || options.dry_run) return allowed;
  return commit(plan, input, commit_as, check);
}

Result<void> write_checked(const WriteOptions& options, const Plan& plan, const Input& input,
                           const CheckOptions& check, const Terminal& terminal) {
  return write_output(options, plan, input.file.source(), input.stamp,
                      [&](const std::filesystem::path& output) {
                        return check_result(input.file, options.file, output, check, terminal);
                      });
}

std::function<bool(const Probe&)> selection(const CommonOptions& common) {
  if (common.patterns.empty()) return {};
  return [&common](const Probe& probe) { return selected(common.patterns, probe.note); };
}

Json plan_head(const WriteOptions& options, const Plan& plan) {
  return {{"schema", "reprobe.plan/1"},
          {"file", options.file},
          {"output", options.output.empty() ? options.file : options.output},
          {"changed", !plan.empty()},
          {"edits", edits_json(plan)}};
}

void add_build_id(Json& plan, const ElfFile& file, const std::string& new_id) {
  const std::string id = file.build_id();
  if (!id.empty()) plan["build_id"] = {{"before", id}, {"after", new_id.empty() ? id : new_id}};
}

void say_index(const std::string& path, const RenewedIndex& index, const Terminal& terminal) {
  if (index.fate == IndexFate::renewed) terminal.info(path + ": renewed the index");
  if (index.fate != IndexFate::emptied) return;
  terminal.warning(
      fmt::format("{}: [{}] the index is empty now: {}", path, kIndexSection, index.why));
}

Json index_json(const RenewedIndex& index) {
  switch (index.fate) {
    case IndexFate::none:
      break;
    case IndexFate::same:
      return {{"fate", "same"}};
    case IndexFate::renewed:
      return {{"fate", "renewed"}};
    case IndexFate::emptied:
      return {{"fate", "emptied"}, {"reason", index.why}};
  }
  return nullptr;
}

void print_edits(const Plan& plan) {
  for (const Edit& edit : plan.edits()) {
    fmt::print("edit {:#x} +{}: {}\n", edit.offset.value, edit.after.size(), edit.why);
  }
  for (const std::string& why : plan.appended_why()) fmt::print("append: {}\n", why);
}

}  // namespace reprobe
