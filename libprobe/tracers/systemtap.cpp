// SystemTap: dwflpp::iterate_over_notes() and sdt_query::setup_note_probe_entry() of tapsets.cxx.
// Its module writes the counter of each process, so that no rule of the kernel's uprobes about
// counters counts.
#include <fmt/format.h>

#include "libprobe/tracers/kernel.hpp"
#include "libprobe/tracers/reasons.hpp"
#include "libprobe/tracers/rules.hpp"

namespace reprobe::consumers {
namespace as_systemtap {
namespace {

void check(const Facts& facts, std::size_t index, const Seen& seen, Report& report) {
  const Probe& probe = facts.probes[index];
  // A missing section counts as one at 0.
  const std::uint64_t moved = (facts.base == nullptr ? 0 : facts.base->addr.value) - seen.base;
  const std::uint64_t address = wrapped(facts, seen.location + moved);
  report.dangles(index, reason::dangling_listed, fmt::format("at {:#x}", address));
  if (address != probe.site.value) {
    report.fails(index, Step::attach, reason::wrong_address,
                 fmt::format("{:#x}, right is {:#x}", address, probe.site.value));
    return;
  }
  if (const auto fault = uprobe_fault(facts, index); !fault.empty()) {
    report.fails(index, Step::attach, fault);
  }
  check_arguments(facts, index, systemtap_arguments, report);
  // What is 0 is looked up as a symbol, which the note's own field cannot spoil.
  const SemaphoreFacts& known = facts.semaphores[index];
  const bool by_symbol = seen.semaphore + moved == 0 && known.symbol;
  if (const auto fault = field_fault(facts, index); !fault.empty() && !by_symbol) {
    return report.fails(index, Step::semaphore, fault);
  }
  // 0 is moved like every address; what is 0 after that is looked up as a symbol.
  const std::uint64_t counter = wrapped(facts, seen.semaphore + moved);
  if (counter != probe.semaphore.value) {
    report.fails(index, Step::semaphore, reason::semaphore_address, fmt::format("{:#x}", counter));
  } else if (counter != 0 && facts.semaphores[index].segment == nullptr) {
    report.fails(index, Step::semaphore, reason::semaphore_address,
                 fmt::format("{:#x} is in no segment", counter));
  }
}

}  // namespace
}  // namespace as_systemtap

void systemtap(const Facts& facts, Report& report) {
  Reading reading(facts);
  const SectionsRead sections{.notes_only = true, .not_loaded = true};
  read_sections(facts, reading, sections, [&](const Section& section) {
    walk_like_libelf(facts, section, [&](const RawNote& raw) {
      reading.take_strict(section, raw);
      return true;
    });
  });
  reading.tell(report);
  for_each_seen(facts, reading, [&](std::size_t probe, const Seen& seen) {
    as_systemtap::check(facts, probe, seen, report);
  });
}

}  // namespace reprobe::consumers
