#include "tool/fix_symbols.hpp"

#include <fmt/format.h>

#include <utility>

#include "libprobe/audit/read_probes.hpp"
#include "libprobe/plan/compose.hpp"
#include "libprobe/plan/planned_source.hpp"
#include "libprobe/plan/undo.hpp"
#include "tool/exit_code.hpp"
#include "tool/write.hpp"

namespace reprobe {

Result<SiteSymbolsPlan> add_site_symbols(FixPlan& fix, const ElfFile& file) {
  const auto repaired = ElfFile::open(planned_source(file.source(), fix.plan));
  if (!repaired) return tl::unexpected(repaired.error());
  const ProbeFile probes = read_probes(*repaired);
  auto symbols = plan_site_symbols(*repaired, probes);
  if (!symbols) return symbols;
  for (const UnnamedSite& site : symbols->sites.unnamed) {
    const Probe& probe = probes.probes[site.probe];
    fix.refused.push_back(
        {probe.note.provider, probe.note.name, probe.site, ".symtab", "no symbol: " + site.reason});
  }
  if (!symbols->refused.empty()) {
    fix.refused.push_back({"", "", std::nullopt, ".symtab", "no symbols: " + symbols->refused});
  }
  if (symbols->plan.empty()) return symbols;
  auto both = compose(file.source(), fix.plan, symbols->plan, Leftovers::keep);
  if (!both) return tl::unexpected(both.error());
  fix.plan = std::move(*both);
  for (const char* name : {".symtab", ".strtab"}) fix.changed_sections.emplace_back(name);
  return symbols;
}

Json symbols_json(const SiteSymbolsPlan& symbols) {
  Json list = Json::array();
  if (!symbols.refused.empty()) return list;
  for (const SiteSymbol& symbol : symbols.sites.symbols) {
    list.push_back({{"name", symbol.name}, {"address", hex(symbol.value.value)}});
  }
  return list;
}

std::string symbols_text(const SiteSymbolsPlan& symbols, bool dry_run) {
  const std::size_t count = symbols.sites.symbols.size();
  if (!symbols.refused.empty() || count == 0) return "";
  const char* sites = count == 1 ? "site" : "sites";
  if (symbols.already) return fmt::format("; {} {} had symbols", count, sites);
  return fmt::format("; {} {} {}", dry_run ? "would name" : "named", count, sites);
}

Result<int> undo_site_symbols(const FixCommandOptions& options, const Terminal& terminal) {
  const auto input = open_input(options);
  if (!input) return tl::unexpected(input.error());
  if (input->file.section(kSitesNamed) == nullptr) {
    return fail(ErrorCode::refused, "", "the file has no symbols that can be taken out",
                "only reprobe fix --symbols writes " + std::string(kSitesNamed));
  }
  // plan_undo() compares the SHA-256 of what it gives.
  const auto plan = plan_undo(input->file, kSitesNamed);
  if (!plan) return tl::unexpected(plan.error());
  const auto written = write_output(options, *plan, *input, {});
  if (!written) return tl::unexpected(written.error());
  if (options.common.json) {
    Json j = plan_head(options, *plan);
    j["size"] = plan->kept(input->file.source()).value;
    print_json(j);
  } else if (options.dry_run) {
    print_edits(*plan);
  }
  terminal.info(fmt::format("{}: {} the file without symbols at its sites", options.file,
                            options.dry_run ? "would give back" : "gave back"));
  return kDone;
}

}  // namespace reprobe
