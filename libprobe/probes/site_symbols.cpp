#include "libprobe/probes/site_symbols.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "libprobe/elf/constants.hpp"
#include "libprobe/elf/site_group.hpp"

namespace reprobe {
namespace {

// Longer ones are not to be typed, and would cost a hostile file's square in names.
constexpr std::size_t kLongestSiteName = 512;

// Tracers' command lines give the others a meaning: blanks, ':', '*', '+', '@', ...
bool is_plain_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '$';
  });
}

// The section that a symbol of the site belongs to; 0 where none can be stated.
std::uint32_t section_of_site(const ElfFile& file, const Probe& probe) {
  const Section* section = file.section_containing(probe.site);
  return section != nullptr && section->index < SHN_LORESERVE ? section->index : 0;
}

std::string why_unnamed(const ElfFile& file, const Probe& probe, const std::string& name) {
  if (!is_plain_name(probe.note.provider) || !is_plain_name(probe.note.name)) {
    return "its name has characters that tracers do not take in a symbol";
  }
  if (name.size() > kLongestSiteName) return "its name is too long for a symbol";
  if (section_of_site(file, probe) == 0) return "its site is in no section";
  return "";
}

// Which of the names have defined symbols of the file itself?
std::set<std::string_view> taken_names(const ElfFile& file,
                                       const std::set<std::string_view>& wanted) {
  std::set<std::string_view> taken;
  for (const Section& section : file.sections()) {
    if (!section.holds_symbols()) continue;
    const auto table = file.symbol_table(section);
    if (!table) continue;
    const SymbolGroup own = site_group(*table);
    for (std::uint32_t i = 1; i < table->size(); ++i) {
      const Symbol symbol = table->at(i);
      if (own.contains(i) || symbol.shndx == SHN_UNDEF) continue;
      const std::string_view name = table->name(symbol);
      if (name.size() > kLongestSiteName) continue;
      if (const auto found = wanted.find(name); found != wanted.end()) taken.insert(*found);
    }
  }
  return taken;
}

SiteSymbol symbol_at(const ElfFile& file, const Probe& probe, std::string name) {
  const bool thumb = probe.facts.function && probe.facts.function->thumb;
  return {std::move(name), VirtAddr{probe.site.value | (thumb ? 1U : 0U)},
          Size{std::max<std::uint64_t>(probe.facts.nop.size, 1)}, section_of_site(file, probe)};
}

}  // namespace

SiteSymbols site_symbols(const ElfFile& file, const ProbeFile& probes) {
  SiteSymbols result;
  std::map<std::string, std::map<VirtAddr, std::size_t>> sites;  // by name: a probe at each site
  for (std::size_t i = 0; i < probes.probes.size(); ++i) {
    const Probe& probe = probes.probes[i];
    if (probe.verdict != Verdict::live) continue;
    std::string name = probe.note.provider + "__" + probe.note.name;
    std::string why = why_unnamed(file, probe, name);
    if (why.empty()) {
      sites[std::move(name)].emplace(probe.site, i);
    } else {
      result.unnamed.push_back({i, std::move(why)});
    }
  }
  std::map<std::string, std::size_t> names;  // what the symbols are called -> probe
  std::vector<std::size_t> doubled;          // another probe's number makes the same name
  for (const auto& [name, places] : sites) {
    std::size_t number = 0;
    for (const auto& [site, probe] : places) {
      const std::string own = places.size() == 1 ? name : name + "." + std::to_string(++number);
      if (!names.emplace(own, probe).second) doubled.push_back(probe);
    }
  }
  for (const std::size_t probe : doubled) {
    result.unnamed.push_back({probe, "another probe's symbol has the name"});
  }
  std::set<std::string_view> wanted;
  for (const auto& [name, probe] : names) wanted.insert(name);
  const std::set<std::string_view> taken = taken_names(file, wanted);
  for (const auto& [name, probe] : names) {
    if (taken.contains(name)) {
      result.unnamed.push_back({probe, "another symbol has the name"});
    } else {
      result.symbols.push_back(symbol_at(file, probes.probes[probe], name));
    }
  }
  std::ranges::sort(result.symbols, [](const SiteSymbol& a, const SiteSymbol& b) {
    return std::tie(a.value, a.name) < std::tie(b.value, b.name);
  });
  return result;
}

}  // namespace reprobe
