// reprobe relativize: what is said of the index that a file gets.

#include <fmt/format.h>

#include "tool/write.hpp"

namespace reprobe {
namespace {

std::string summary(const RelativizeCommandOptions& options, const RelativizePlan& result) {
  const std::size_t count = result.index.entries.size();
  const std::string what = fmt::format("the index of {} probe{} at {:#x}", count,
                                       count == 1 ? "" : "s", result.address.value);
  if (result.plan.empty()) return fmt::format("{}: has {}, nothing to change", options.file, what);
  const std::string left =
      result.dangling == 0 ? "" : fmt::format(", left out {} dangling", result.dangling);
  return fmt::format("{}: {}{} {}{}; build-id kept", options.file,
                     options.write.dry_run ? "would " : "",
                     result.renewed ? (options.write.dry_run ? "renew" : "renewed")
                                    : (options.write.dry_run ? "add" : "added"),
                     what, left);
}

struct Relativize {
  const RelativizeCommandOptions& options;

  Result<Planned<RelativizePlan>> plan(const Input& input, const Terminal&) const {
    return reprobe::plan(input, RelativizeRequest{options.common.patterns});
  }

  void describe(Json& json, const ElfFile& file, const Planned<RelativizePlan>& planned) const {
    const RelativizePlan& result = planned.details;
    json["appended"] = planned.plan().appended().size();
    json["removed"] = Json::array();
    json["sites"] = Json::array();
    for (const IndexEntry& entry : result.index.entries) {
      json["sites"].push_back(
          {{"provider", entry.provider}, {"name", entry.name}, {"site", hex(entry.site.value)}});
    }
    json["index"] = {{"address", hex(result.address.value)}, {"dangling", result.dangling}};
    json["refused"] = Json::array();
    add_build_id(json, file);
  }

  void print(const Planned<RelativizePlan>& planned) const {
    for (const IndexEntry& entry : planned.details.index.entries) {
      fmt::print("index {} at {:#x}\n", printable(entry.provider + ":" + entry.name),
                 entry.site.value);
    }
  }

  int say(const Planned<RelativizePlan>& planned, const ElfFile&, const Terminal& terminal) const {
    terminal.info(summary(options, planned.details));
    return kDone;
  }
};

}  // namespace

int run_relativize(const RelativizeCommandOptions& options) {
  return run_rewrite(options, Relativize{options});
}

}  // namespace reprobe
