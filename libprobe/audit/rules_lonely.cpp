// Counters that code checks and no note names: no tracer will ever raise them.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "libprobe/audit/rules_parts.hpp"
#include "libprobe/probes/semaphore.hpp"

namespace reprobe::rules {
namespace {

using Readers = std::unordered_map<std::uint64_t, VirtAddr>;  // counter -> an operand that names it

// Where x86-64 code has one of the addresses for an operand: disp32(%rip), with up to two bytes of
// an immediate behind it, or an absolute disp32 (Intel SDM 2.1.5, 2.2.1.6). The bytes are looked at
// one by one; that an accident looks like it is one chance in billions for each of them.
void find_readers(const ElfFile& file, const Section& section,
                  const std::unordered_set<std::uint64_t>& counters, Readers& readers) {
  constexpr std::size_t kDisplacement = 4;
  constexpr std::uint64_t kLongestImmediate = 2;
  const auto bytes = file.contents(section);
  if (!bytes) return;
  const auto add = [&](std::uint64_t target, std::size_t at) {
    if (counters.contains(target)) readers.try_emplace(target, VirtAddr{section.addr.value + at});
  };
  for (std::size_t at = 1; at + kDisplacement <= bytes->size(); ++at) {
    const auto modrm = std::to_integer<unsigned>((*bytes)[at - 1]);
    const bool relative = (modrm & 0xc7U) == 0x05;
    const bool absolute =
        at >= 2 && modrm == 0x25 && (std::to_integer<unsigned>((*bytes)[at - 2]) & 0xc7U) == 0x04;
    if (!relative && !absolute) continue;
    // lea reads nothing: start code names the end of .data so, where the counters may begin.
    if (relative && at >= 2 && (*bytes)[at - 2] == std::byte{0x8d}) continue;
    const auto displacement = static_cast<std::uint64_t>(static_cast<std::int64_t>(
        static_cast<std::int32_t>(load_uint(*bytes, at, kDisplacement, std::endian::little))));
    if (absolute) add(displacement, at);
    const std::uint64_t behind = section.addr.value + at + kDisplacement;
    for (std::uint64_t more = 0; relative && more <= kLongestImmediate; ++more) {
      add(behind + more + displacement, at);
    }
  }
}

}  // namespace

void add_lonely_counter_findings(const ElfFile& file, const ProbeFile& probes,
                                 std::vector<Finding>& out) {
  const std::uint16_t type = file.header().type;
  if ((type != ET_EXEC && type != ET_DYN) || file.header().machine != EM_X86_64) return;
  if (probes.probes.empty() || probes.debug_file) return;  // see notes-stripped
  std::unordered_set<std::uint64_t> counters;
  const std::vector<SemaphoreSymbol> symbols = semaphore_symbols(file);
  for (const SemaphoreSymbol& symbol : symbols) counters.insert(symbol.address.value);
  for (const Probe& probe : probes.probes) counters.erase(probe.semaphore.value);
  if (counters.empty()) return;
  Readers readers;
  std::uint64_t budget = file.source().size();  // sections may overlap in a hostile file
  for (const Section& section : file.sections()) {
    if (!section.executable() || section.nobits() || section.size.value > budget) continue;
    budget -= section.size.value;
    find_readers(file, section, counters, readers);
  }
  if (readers.empty()) return;
  Finding finding = about_file(
      "semaphore-without-note", Severity::warning,
      fmt::format("the code checks {} that no note names: the probe was forgotten, or its code was "
                  "dropped, and no tracer raises it",
                  readers.size() == 1 ? "a counter" : plural(readers.size(), "counter")));
  constexpr std::size_t kShown = 4;
  std::size_t shown = 0;
  for (const SemaphoreSymbol& symbol : symbols) {
    const auto reader = readers.find(symbol.address.value);
    if (reader == readers.end() || ++shown > kShown) continue;
    finding.evidence.push_back(fmt::format("{} at {:#x}, named by the code at {:#x}", symbol.name,
                                           symbol.address.value, reader->second.value));
  }
  finding.hint = "put the probe behind the check, or remove the check and the counter";
  out.push_back(std::move(finding));
}

}  // namespace reprobe::rules
