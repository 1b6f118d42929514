#include "libprobe/elf/fork_symbols.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

namespace reprobe {
namespace {

// Functions of the C library, taken from a shared one.
constexpr std::array<std::string_view, 13> kImported{
    "_Fork",   "__clone", "__fork",      "clone",        "clone3", "daemon", "fork",
    "forkpty", "popen",   "posix_spawn", "posix_spawnp", "system", "vfork"};
// The same where the program holds them. Every static program with threads has clone().
constexpr std::array<std::string_view, 10> kHeld{
    "_Fork", "__libc_fork", "daemon",       "fork",   "forkpty",
    "popen", "posix_spawn", "posix_spawnp", "system", "vfork"};

bool is_one_of(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

std::vector<std::string> fork_symbols(const ElfFile& file) {
  std::set<std::string> found;
  for (const Section& section : file.sections()) {
    if (!section.holds_symbols()) continue;
    const auto symbols = file.symbol_table(section);
    if (!symbols) continue;
    for (std::uint32_t i = 1; i < symbols->size(); ++i) {
      const Symbol symbol = symbols->at(i);
      std::string_view name = symbols->name(symbol);
      name = name.substr(0, name.find('@'));  // .symtab states the version too
      const bool function = symbol.type == STT_FUNC || symbol.type == STT_NOTYPE;
      const bool imported = symbol.shndx == SHN_UNDEF && is_one_of(kImported, name);
      const bool held = symbol.in_section() && symbol.type == STT_FUNC && is_one_of(kHeld, name);
      if (function && (imported || held)) found.emplace(name);
    }
  }
  return {found.begin(), found.end()};
}

}  // namespace reprobe
