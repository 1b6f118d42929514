#include "libprobe/tracers/alone.hpp"

#include "libprobe/notes/arguments.hpp"
#include "libprobe/tracers/reasons.hpp"

namespace reprobe::consumers {

std::uint64_t moved_by_base(const Facts& facts, const Seen& seen, std::uint64_t address) {
  const std::uint64_t base = facts.base == nullptr ? 0 : facts.base->addr.value;
  return base == 0 || seen.base == 0 ? address : wrapped(facts, address + base - seen.base);
}

std::optional<std::uint64_t> offset_in_load(const Facts& facts, std::uint64_t address) {
  const Segment* segment = facts.file.load_segment(VirtAddr{address});
  if (segment == nullptr) return std::nullopt;
  return address - segment->vaddr.value + segment->offset.value;
}

void attach_alone(const Facts& facts, std::size_t probe, std::uint64_t site,
                  std::optional<std::uint64_t> counter, Counters& counters, Report& report) {
  report.dangles(probe, reason::dangling_attached);
  check_site(facts, probe, site, report);
  if (counters.conflict(site, counter.value_or(0))) {
    return report.fails(probe, Step::attach, reason::semaphore_conflict);
  }
  if (const auto fault = field_fault(facts, probe); !fault.empty()) {
    return report.fails(probe, Step::semaphore, fault);
  }
  if (!counter) return;
  if (refuses_counter(*counter)) return report.fails(probe, Step::attach, reason::semaphore_odd);
  if (const auto fault = counter_fault(facts, probe, *counter); !fault.empty()) {
    report.fails(probe, Step::semaphore, fault);
  }
}

std::optional<ArgumentFault> each_argument(std::string_view text, std::uint16_t machine,
                                           ArgumentRule* rule) {
  for (std::size_t number = 1;; ++number) {
    const std::string_view piece = first_argument(text, machine);
    if (piece.empty()) return std::nullopt;
    if (auto fault = rule(piece, machine)) {
      fault->number = number;
      return fault;
    }
    text.remove_prefix(static_cast<std::size_t>(piece.data() - text.data()) + piece.size());
  }
}

}  // namespace reprobe::consumers
