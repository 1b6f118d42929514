#include "libprobe/probes/note_header.hpp"

#include <string>
#include <unordered_map>

#include "libprobe/code/rust_names.hpp"

namespace reprobe {
namespace {

constexpr std::string_view kSdt{"sys/sdt.h"}, kUsdt{"usdt.h"}, kUsdtNop5{"usdt.h 2026-02"},
    kUsdtNop10{"usdt.h 2026-07"}, kFolly{"folly"}, kRust{"Rust"};

std::string_view by_nops(const Probe& probe) {
  // What `reprobe sled` put there tells nothing of the source.
  if (probe.section == kSledSection) return "";
  constexpr std::uint64_t kBoth = 6;  // 90, and the nop of five bytes
  const Nop& nop = probe.facts.nop;
  if (nop.kind == NopKind::nop10) return kUsdtNop10;
  return nop.kind == NopKind::nop5 && nop.size == kBoth ? kUsdtNop5 : std::string_view{};
}

// By the name of a symbol at the probe's counter.
std::string_view by_counter(const Probe& probe, std::string_view symbol) {
  const std::string& provider = probe.note.provider;
  const std::string& name = probe.note.name;
  if (symbol == provider + "_" + name + "_semaphore") return kSdt;
  if (symbol == "__usdt_sema_" + provider + "__" + name) return kUsdt;
  return symbol == "folly_sdt_semaphore_" + provider + "_" + name ? kFolly : std::string_view{};
}

}  // namespace

std::vector<std::string_view> note_headers(const ElfFile& file, const ProbeFile& probes) {
  std::vector<std::string_view> headers(probes.probes.size());
  std::unordered_multimap<std::uint64_t, std::size_t> by_address;
  for (std::size_t i = 0; i < probes.probes.size(); ++i) {
    const Probe& probe = probes.probes[i];
    headers[i] = by_nops(probe);
    if (headers[i].empty() && probe.semaphore.value != 0)
      by_address.emplace(probe.semaphore.value, i);
  }
  for (const Section& section : file.sections()) {
    if (!section.holds_symbols() || by_address.empty()) continue;
    const auto symbols = file.symbol_table(section);
    if (!symbols) continue;
    for (std::uint32_t i = 1; i < symbols->size(); ++i) {
      const Symbol symbol = symbols->at(i);
      const auto [first, last] = by_address.equal_range(symbol.value.value);
      // A counter that very many probes share costs one look, not one for each.
      if (first == last || symbol.type == STT_SECTION) continue;
      const std::string_view found =
          by_counter(probes.probes[first->second], symbols->name(symbol));
      if (found.empty()) continue;
      for (auto it = first; it != last; ++it) headers[it->second] = found;
      by_address.erase(first, last);
    }
  }
  for (std::size_t i = 0; i < probes.probes.size(); ++i) {
    const auto& function = function_of(probes.probes[i]);
    if (headers[i].empty() && function && demangle_rust(function->name)) headers[i] = kRust;
  }
  return headers;
}

}  // namespace reprobe
