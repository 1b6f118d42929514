// open_input, and what each command plans.

#include <algorithm>
#include <utility>

#include "libprobe/audit/read_probes.hpp"
#include "libprobe/elf/header_room.hpp"
#include "libprobe/facade/no_exceptions.hpp"
#include "libprobe/plan/compose.hpp"
#include "libprobe/plan/planned_source.hpp"
#include "libprobe/plan/undo.hpp"
#include "libprobe/probes/select.hpp"
#include "reprobe/reprobe.hpp"

namespace reprobe {
namespace {

Result<Input> open_for_rewrite(const std::filesystem::path& path, PayloadMode mode) {
  const auto stamp = file_stamp(path);
  auto file = open_elf(path);
  if (!file) return tl::unexpected(file.error());
  if (!stamp) return tl::unexpected(stamp.error());
  Input input{path, *stamp, std::move(*file), {}, {}, mode};
  input.payload = payload_behind(input.file);
  if (!input.payload || mode == PayloadMode::ignore) {
    input.payload.reset();
    return input;
  }
  auto image = without_payload(input.file, *input.payload);
  if (!image) return tl::unexpected(image.error());
  input.whole = std::exchange(input.file, std::move(*image));
  return input;
}

// Where the plan gives the file headers that patchelf would overwrite the file with.
std::vector<std::string> warnings_of(const ElfFile& file, const Plan& plan) {
  if (plan.empty() || is_overwritten_by_patchelf(file)) return {};
  const auto after = ElfFile::open(planned_source(file.source(), plan));
  if (!after || !is_overwritten_by_patchelf(*after)) return {};
  return {
      "the program headers have no room to grow any more: patchelf (--set-rpath, --add-needed) "
      "would overwrite what stands behind them, so run it before reprobe"};
}

Result<Planned<FixedFile>> plan_request(const Input& input, const FixRequest& request) {
  auto fixed = plan_fix_file(input.file, request);
  if (!fixed) return tl::unexpected(fixed.error());
  Planned<FixedFile> planned{std::move(*fixed), {}, {}};
  planned.probes = std::move(planned.details.probes);
  planned.proof.options = {.command = RewriteCommand::fix,
                           .allow_removed_ambiguous = request.remove_ambiguous,
                           .allow_new_build_id = request.new_build_id,
                           .notes_from = request.from_debug,
                           .allow_respelled = request.respell,
                           .objects = request.objects};
  planned.proof.changed_sections = planned.details.fix.changed_sections;
  return planned;
}

Result<Planned<SledResult>> plan_request(const Input& input, const SledRequest& request) {
  auto sledded = plan_sled_file(input.file, request);
  if (!sledded) return tl::unexpected(sledded.error());
  if (sledded->original && input.whole) {
    return fail(ErrorCode::refused, "", "data behind the ELF file, which the sleds would move",
                "reprobe sled --undo comes first");
  }
  Proof proof{.options = {.command = RewriteCommand::sled}, .original = sledded->original};
  auto warnings = warnings_of(input.file, sledded->result.plan);
  return Planned<SledResult>{std::move(sledded->result), std::move(sledded->probes),
                             std::move(proof), std::move(warnings)};
}

// Where no check is rewritten, a stale index is all that changes: that is relativize's proof.
RewriteCommand command_of(const GuardsResult& result, GuardsTo to) {
  const bool rewritten = std::ranges::any_of(
      result.outcomes, [](const GuardOutcome& outcome) { return outcome.reason.empty(); });
  if (!rewritten && result.index.fate != IndexFate::none) return RewriteCommand::relativize;
  return to == GuardsTo::on ? RewriteCommand::guards_on : RewriteCommand::guards_site;
}

Result<Planned<GuardsResult>> plan_request(const Input& input, const GuardsRequest& request) {
  ProbeFile probes = read_probes(input.file);
  auto result = plan_guards(
      input.file, probes,
      {.to = request.to, .selected = selection(request.patterns), .exported = request.exported});
  if (!result) return tl::unexpected(result.error());
  Proof proof{.options = {.command = command_of(*result, request.to)}};
  auto warnings = warnings_of(input.file, result->plan);
  return Planned<GuardsResult>{std::move(*result), std::move(probes), std::move(proof),
                               std::move(warnings)};
}

Result<Planned<RelativizePlan>> plan_request(const Input& input, const RelativizeRequest& request) {
  ProbeFile probes = read_probes(input.file);
  auto result = plan_relativize(input.file, probes, {.selected = selection(request.patterns)});
  if (!result) return tl::unexpected(result.error());
  auto warnings = warnings_of(input.file, result->plan);
  return Planned<RelativizePlan>{std::move(*result), std::move(probes),
                                 Proof{.options = {.command = RewriteCommand::relativize}},
                                 std::move(warnings)};
}

Result<Plan> plan_original(const ElfFile& file) {
  if (file.section(kUndoIndexSection) == nullptr) return plan_undo(file);
  const auto original = undo_all(file);
  if (!original) return tl::unexpected(original.error());
  return plan_output(file.source(), *original, "the original's bytes");
}

// plan_undo() and undo_all() compare the SHA-256 of what they give.
Result<Planned<Undone>> plan_request(const Input& input, const UndoRequest& request) {
  std::string_view record = kUndoSection;
  if (request.of == UndoRequest::Of::guards) {
    const Section* section = guards_record(input.file);
    if (section == nullptr) {
      return fail(ErrorCode::refused, "", "its guards were not rewritten",
                  "only reprobe guards writes the record that gives the original back");
    }
    record = section->name;
  }
  // What sleds needed besides goes with them.
  auto undo = record == kUndoSection ? plan_original(input.file) : plan_undo(input.file, record);
  if (!undo) return tl::unexpected(undo.error());
  return Planned<Undone>{
      {std::move(*undo)}, {}, Proof{.options = {.command = RewriteCommand::undo}}};
}

}  // namespace

Result<Input> open_input(const std::filesystem::path& path, PayloadMode payload) {
  return without_exceptions([&] { return open_for_rewrite(path, payload); });
}

Result<Planned<FixedFile>> plan(const Input& input, const FixRequest& request) {
  return without_exceptions([&] { return plan_request(input, request); });
}

Result<Planned<SledResult>> plan(const Input& input, const SledRequest& request) {
  return without_exceptions([&] { return plan_request(input, request); });
}

Result<Planned<GuardsResult>> plan(const Input& input, const GuardsRequest& request) {
  return without_exceptions([&] { return plan_request(input, request); });
}

Result<Planned<RelativizePlan>> plan(const Input& input, const RelativizeRequest& request) {
  return without_exceptions([&] { return plan_request(input, request); });
}

Result<Planned<Undone>> plan(const Input& input, const UndoRequest& request) {
  return without_exceptions([&] { return plan_request(input, request); });
}

}  // namespace reprobe
