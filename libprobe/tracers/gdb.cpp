// gdb: elf_parse_notes() of BFD and handle_stap_probe() of stap-probe.c. It writes the counter
// through ptrace(2), so that no rule of the kernel's counts.
#include <fmt/format.h>

#include "libprobe/tracers/kernel.hpp"
#include "libprobe/tracers/reasons.hpp"
#include "libprobe/tracers/rules.hpp"

namespace reprobe::consumers {
namespace as_gdb {
namespace {

// get_stap_base_address_1(): the last section of that name that is loaded or has contents.
const Section* base_section(const ElfFile& file) {
  const Section* last = nullptr;
  for (const Section& section : file.sections()) {
    if (section.name == kBaseSection && (section.allocated() || !section.nobits())) {
      last = &section;
    }
  }
  return last;
}

void check(const Facts& facts, std::size_t index, const Seen& seen, std::uint64_t base,
           Report& report) {
  const Probe& probe = facts.probes[index];
  const std::uint64_t moved = base - seen.base;
  const std::uint64_t address = wrapped(facts, seen.location + moved);
  report.dangles(index, reason::dangling_listed, fmt::format("at {:#x}", address));
  if (address != probe.site.value) {
    report.fails(index, Step::attach, reason::wrong_address,
                 fmt::format("{:#x}, right is {:#x}", address, probe.site.value));
    return;
  }
  check_arguments(facts, index, gdb_arguments, report);
  if (const auto fault = field_fault(facts, index); !fault.empty()) {
    return report.fails(index, Step::semaphore, fault);
  }
  if (seen.semaphore == 0) return;
  const std::uint64_t counter = wrapped(facts, seen.semaphore + moved);
  if (counter != probe.semaphore.value || facts.semaphores[index].segment == nullptr) {
    report.fails(index, Step::semaphore, reason::semaphore_address, fmt::format("{:#x}", counter));
  }
}

}  // namespace
}  // namespace as_gdb

void gdb(const Facts& facts, Report& report) {
  Reading reading(facts);
  read_sections(facts, reading, {.notes_only = true}, [&](const Section& section) {
    walk_like_bfd(facts, section, [&](const RawNote& raw) {
      reading.take_strict(section, raw);
      return true;
    });
  });
  const Section* base = as_gdb::base_section(facts.file);
  if (base == nullptr) reading.refuse(reason::base_missing);
  reading.tell(report);
  for_each_seen(facts, reading, [&](std::size_t probe, const Seen& seen) {
    as_gdb::check(facts, probe, seen, base->addr.value, report);
  });
}

}  // namespace reprobe::consumers
