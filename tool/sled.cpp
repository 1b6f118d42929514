// reprobe sled: what is said of the sleds of a file; --undo gives the input back.

#include <fmt/format.h>

#include <map>

#include "tool/write.hpp"

namespace reprobe {
namespace {

// The probes of each site, in note order.
std::multimap<VirtAddr, const Probe*> by_site(const ProbeFile& probes) {
  std::multimap<VirtAddr, const Probe*> map;
  for (const Probe& probe : probes.probes) map.emplace(probe.site, &probe);
  return map;
}

void describe_sites(Json& j, const ProbeFile& probes, const SledResult& result) {
  const auto map = by_site(probes);
  const auto named = [&](VirtAddr site, const auto& fill) {
    const auto [first, last] = map.equal_range(site);
    Json items = Json::array();
    for (auto it = first; it != last; ++it) {
      Json item = {{"provider", it->second->note.provider}, {"name", it->second->note.name}};
      fill(item);
      items.push_back(std::move(item));
    }
    return items;
  };
  Json sites = Json::array();
  for (const PlannedSite& site : result.sleds.sites) {
    const auto moved = result.moved.find(site.site.value);
    const VirtAddr to = moved == result.moved.end() ? site.site : moved->second;
    for (Json& item : named(site.site, [&](Json& j) {
           j["from"] = hex(site.site.value);
           j["to"] = hex(to.value);
           j["tactic"] = to_string(site.tactic);
           if (result.unsafe.contains(site.site)) j["breakpoints"] = "unsafe";
         })) {
      sites.push_back(std::move(item));
    }
  }
  Json refused = Json::array();
  for (const RefusedSite& site : result.sleds.refused) {
    for (Json& item : named(site.site, [&](Json& j) {
           j["site"] = hex(site.site.value);
           j["reason"] = site.reason;
           if (!site.detail.empty()) j["detail"] = site.detail;
         })) {
      refused.push_back(std::move(item));
    }
  }
  j["sites"] = std::move(sites);
  j["refused"] = std::move(refused);
}

void print_plan(const ProbeFile& probes, const SledResult& result) {
  const auto map = by_site(probes);
  const auto names = [&](VirtAddr site) {
    std::string text;
    const auto [first, last] = map.equal_range(site);
    for (auto it = first; it != last; ++it) {
      text += fmt::format("{}{}:{}", text.empty() ? "" : ", ", it->second->note.provider,
                          it->second->note.name);
    }
    return printable(text);
  };
  for (const PlannedSite& site : result.sleds.sites) {
    const auto moved = result.moved.find(site.site.value);
    const VirtAddr to = moved == result.moved.end() ? site.site : moved->second;
    fmt::print("sled {} at {:#x}: {} to {:#x}{}\n", names(site.site), site.site.value,
               to_string(site.tactic), to.value,
               result.unsafe.contains(site.site) ? ", breakpoints are unsafe" : "");
  }
  for (const RefusedSite& site : result.sleds.refused) {
    fmt::print("leave {} at {:#x}: {}{}\n", names(site.site), site.site.value, site.reason,
               site.detail.empty() ? "" : " (" + site.detail + ")");
  }
}

// "FILE: sleds: 529/531 (99.6%)", and what was left, by reason.
void say_coverage(const SledCommandOptions& options, const SledResult& result,
                  const Terminal& terminal) {
  const std::size_t done = result.sleds.sites.size();
  const std::size_t all = done + result.sleds.refused.size();
  const std::string share =
      all == 0
          ? ""
          : fmt::format(" ({:.1f}%)", 100.0 * static_cast<double>(done) / static_cast<double>(all));
  terminal.info(fmt::format("{}: sleds: {}/{}{}", options.file, done, all, share));
  if (!result.unsafe.empty()) {
    terminal.info(
        fmt::format("{}: {} of them change code that breakpoints of debuggers would break",
                    options.file, result.unsafe.size()));
  }
  std::map<std::string, std::size_t> reasons;
  for (const RefusedSite& site : result.sleds.refused) ++reasons[site.reason];
  for (const auto& [reason, count] : reasons) {
    terminal.info(fmt::format("{}: left as they are: {}: {}", options.file, count, reason));
  }
}

struct Sled {
  const SledCommandOptions& options;

  Result<Planned<SledResult>> plan(const Input& input, const Terminal&) const {
    SledRequest request = options.request;
    request.patterns = options.common.patterns;
    return reprobe::plan(input, request);
  }

  void describe(Json& json, const ElfFile& file, const Planned<SledResult>& planned) const {
    json["appended"] = planned.plan().appended().size();
    json["removed"] = Json::array();
    describe_sites(json, planned.probes, planned.details);
    add_index(json, planned.details.index);
    add_build_id(json, file);
  }

  void print(const Planned<SledResult>& planned) const {
    print_plan(planned.probes, planned.details);
  }

  int say(const Planned<SledResult>& planned, const ElfFile&, const Terminal& terminal) const {
    const SledResult& result = planned.details;
    if (result.already) {
      terminal.info(options.file + ": has its sleds already, nothing to change");
      return kDone;
    }
    say_coverage(options, result, terminal);
    say_index(options.file, result.index, terminal);
    const SledPlan& sleds = result.sleds;
    if (sleds.sites.empty() && sleds.refused.empty() && !planned.probes.probes.empty()) {
      terminal.warning(options.file + ": no probe is selected, nothing to change");
    }
    // With -o the copy is there, as a build step expects it.
    const bool none = sleds.sites.empty() && !sleds.refused.empty() && !options.write.output;
    return none ? kRefused : kDone;
  }
};

}  // namespace

int run_sled(const SledCommandOptions& options) {
  if (options.undo) return run_undo(options, UndoRequest::Of::sleds);
  return run_rewrite(options, Sled{options});
}

}  // namespace reprobe
