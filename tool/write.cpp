#include "tool/write.hpp"

#include <fmt/format.h>

#include "libprobe/elf/header_room.hpp"
#include "libprobe/notes/index.hpp"
#include "libprobe/plan/planned_source.hpp"
#include "tool/elf_input.hpp"
#include "tool/exit_code.hpp"

namespace reprobe {

namespace {

// Does the plan leave the end of the file where it is?
bool keeps_end(const Plan& plan, const ByteSource& input) {
  return plan.appended().empty() && plan.kept(input).value == input.size();
}

// What stands behind the file may only move with its end where whoever reads it looks there.
Result<void> check_payload(const WriteOptions& options, const Plan& plan, const Input& input) {
  if (!input.payload || options.payload != PayloadMode::automatic || plan.empty()) return {};
  const Payload& payload = *input.payload;
  const bool sealed = payload.kind == PayloadKind::signature;
  if (!sealed && keeps_end(plan, input.file.source())) return {};
  if (is_found_from_end(payload.kind)) return {};
  return fail(ErrorCode::refused, fmt::format("file bytes {:#x}", payload.offset.value),
              fmt::format("payload: {} bytes stand behind the ELF file, {}; {}", payload.size.value,
                          to_string(payload.kind),
                          sealed ? "it would be wrong for the changed file"
                                 : "new bytes have to stand before or behind them"),
              sealed ? "--payload=keep keeps it all the same; sign the file again"
                     : "--payload=keep: they stay the file's last bytes, behind all that the "
                       "headers name; --payload=ignore: they stay at their offset");
}

}  // namespace

Result<Input> open_input(const WriteOptions& options) {
  const auto stamp = file_stamp(options.file);
  auto source = map_input(options.file);
  if (!source) return tl::unexpected(source.error());
  if (!stamp) return tl::unexpected(stamp.error());
  auto file = open_elf(std::move(*source));
  if (!file) return tl::unexpected(file.error());
  Input input{*stamp, std::move(*file)};
  const auto payload = payload_behind(input.file);
  if (!payload || options.payload == PayloadMode::ignore) return input;
  auto image = without_payload(input.file, *payload);
  if (!image) return tl::unexpected(image.error());
  return Input{*stamp, std::move(*image), std::move(input.file), payload};
}

Result<void> write_output(const WriteOptions& options, const Plan& plan, const Input& input,
                          const std::function<Result<void>(const std::filesystem::path&)>& check) {
  if (auto allowed = check_payload(options, plan, input); !allowed) return allowed;
  if (plan.empty() && options.output.empty()) return {};
  CommitOptions commit_as;
  commit_as.stamp = input.stamp;
  if (input.payload) commit_as.last = input.payload->size;
  commit_as.input = options.file;
  if (!options.output.empty()) commit_as.output = options.output;
  commit_as.allow_hard_links = options.break_hardlinks;
  commit_as.allow_signature = options.drop_signature;
  commit_as.allow_verity = options.drop_verity;
  commit_as.preserve_dates = options.preserve_dates;
  if (auto allowed = check_committable(commit_as); !allowed || options.dry_run) return allowed;
  return commit(plan, input.with_payload().source(), commit_as, check);
}

Result<void> write_checked(const WriteOptions& options, const Plan& plan, const Input& input,
                           const CheckOptions& check, const Terminal& terminal) {
  CheckOptions checked = check;
  checked.ignored_payload = options.payload == PayloadMode::ignore;
  return write_output(options, plan, input, [&](const std::filesystem::path& output) {
    return check_result(input.with_payload(), options.file, output, checked, terminal);
  });
}

std::function<bool(const Probe&)> selection(const CommonOptions& common) {
  if (common.patterns.empty()) return {};
  return [&common](const Probe& probe) { return selected(common.patterns, probe.note); };
}

int report_failure(const WriteOptions& options, const CommonOptions& common, const Error& error,
                   const Terminal& terminal) {
  terminal.error(options.file, error);
  if (common.json) {
    Json why = {{"code", name_of(error.code)}, {"message", error.message}};
    if (!error.where.empty()) why["where"] = error.where;
    if (!error.hint.empty()) why["hint"] = error.hint;
    Json document = plan_head(options, Plan{});
    document["error"] = std::move(why);
    print_json(document);
  }
  return exit_code(error.code);
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

void warn_of_patchelf(const std::string& path, const ElfFile& file, const Plan& plan,
                      const Terminal& terminal) {
  if (plan.empty() || is_overwritten_by_patchelf(file)) return;
  const auto after = ElfFile::open(planned_source(file.source(), plan));
  if (!after || !is_overwritten_by_patchelf(*after)) return;
  terminal.warning(
      path +
      ": the program headers have no room to grow any more: patchelf (--set-rpath, --add-needed) "
      "would overwrite what stands behind them, so run it before reprobe");
}

void print_edits(const Plan& plan) {
  for (const Edit& edit : plan.edits()) {
    fmt::print("edit {:#x} +{}: {}\n", edit.offset.value, edit.after.size(), edit.why);
  }
  for (const std::string& why : plan.appended_why()) fmt::print("append: {}\n", why);
}

}  // namespace reprobe
