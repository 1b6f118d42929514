#include "libprobe/tracers/rules.hpp"

#include <fmt/format.h>

#include "libprobe/notes/arguments.hpp"
#include "libprobe/tracers/kernel.hpp"
#include "libprobe/tracers/reasons.hpp"

namespace reprobe::consumers {
namespace {

constexpr std::size_t kShown = 40;  // of an operand

}  // namespace

bool native_class(const ElfHeader& header) { return header.is64 == (header.machine != EM_ARM); }

std::string_view section_fault(const Facts& facts, const Section& section,
                               const SectionsRead& wanted) {
  if (wanted.first_only && &section != facts.note_sections.front()) return reason::second_section;
  if (wanted.notes_only && section.type != SHT_NOTE) return reason::section_type;
  if (wanted.not_loaded && section.allocated()) return reason::section_alloc;
  return "";
}

void check_site(const Facts& facts, std::size_t probe, std::uint64_t computed, Report& report) {
  const auto site = facts.probes[probe].site_offset;
  if (!site || site->value != computed) {
    const std::string right = site ? fmt::format("{:#x}", site->value) : "none";
    return report.fails(probe, Step::attach, reason::wrong_address,
                        fmt::format("file offset {:#x}, right is {}", computed, right));
  }
  const std::string_view fault = uprobe_fault(facts, probe);
  if (!fault.empty()) report.fails(probe, Step::attach, fault);
}

void report_argument(std::size_t probe, const ArgumentFault& fault, Report& report) {
  // No more than is shown: another argument follows in some note of a megabyte.
  const std::string_view first =
      first_argument(fault.operand.substr(0, 2 * kShown), report.machine());
  std::string shown(first.substr(0, kShown));
  report.fails(probe, Step::argument, fault.reason, std::move(shown), fault.number);
}

void check_arguments(const Facts& facts, std::size_t probe, ArgumentRule rule, Report& report) {
  const auto fault = rule(facts.probes[probe].note.arguments, facts.file.header().machine);
  if (fault) report_argument(probe, *fault, report);
}

}  // namespace reprobe::consumers
