// bcc: bcc_elf_foreach_usdt() of bcc_elf.c and Context::add_probe() of usdt.cc. bpftrace before
// 0.25 uses both.
#include <fmt/format.h>

#include <optional>

#include "libprobe/tracers/kernel.hpp"
#include "libprobe/tracers/reasons.hpp"
#include "libprobe/tracers/rules.hpp"

namespace reprobe::consumers {
namespace as_bcc {
namespace {

// Three loops share one cursor over the section headers: the first executable section, then
// .probes, then the notes. A loop that finds nothing leaves the cursor at the start.
struct SectionCursor {
  std::uint64_t first_code{};
  const Section* counters{};
  std::uint32_t notes_from{};  // index of the first section that is looked at for notes

  explicit SectionCursor(const ElfFile& file) {
    std::uint32_t from = 1;
    for (const Section& section : file.sections()) {
      if (section.index < from || (section.flags & SHF_EXECINSTR) == 0) continue;
      first_code = section.addr.value;
      from = section.index + 1;
      break;
    }
    for (const Section& section : file.sections()) {
      if (section.index < from || section.name != kProbesSection) continue;
      counters = &section;
      break;
    }
    notes_from = counters != nullptr ? counters->index + 1 : 1;
  }
};

void read_section(const Facts& facts, const Section& section, std::uint64_t first_code,
                  Reading& reading) {
  walk_like_libelf(facts, section, [&](const RawNote& raw) {
    if (raw.type != NT_STAPSDT) {
      reading.skip(section, raw, reason::note_type);
    } else if (!exact_owner(facts, section, raw)) {
      reading.skip(section, raw, reason::note_owner);
    } else if (const auto read = strict_descriptor(facts, section, raw); !read) {
      reading.skip(section, raw, reason::note_end);
    } else if (read->fields.location.value < first_code) {
      reading.skip(section, raw, reason::below_code);
    } else {
      reading.take(section, raw, *read);
    }
    return true;
  });
}

// bcc_resolve_symname(): the executable PT_LOAD that holds the address. 0 counts as unresolved.
std::optional<std::uint64_t> resolve(const Facts& facts, std::uint64_t address) {
  const Segment* segment = facts.file.load_segment(VirtAddr{address});
  if (address == 0 || segment == nullptr || (segment->flags & PF_X) == 0) return std::nullopt;
  const std::uint64_t offset = address - segment->vaddr.value + segment->offset.value;
  if (offset == 0) return std::nullopt;
  return offset;
}

class Attach {
 public:
  Attach(const Facts& facts, const Reading& reading, const SectionCursor& cursor,
         ArgumentRule* arguments, Report& report)
      : facts_(facts), reading_(reading), cursor_(cursor), arguments_(arguments), report_(report) {}

  void group(const std::vector<std::size_t>& members) {
    std::optional<std::size_t> unresolved;
    const Seen* first = nullptr;
    for (const std::size_t probe : members) {
      const Seen* seen = reading_.seen(probe);
      if (seen == nullptr) continue;
      if (first == nullptr) first = seen;
      if (!resolve(facts_, seen->location)) {
        if (!unresolved) unresolved = probe;
        report_.fails(probe, Step::attach, reason::no_segment,
                      fmt::format("{:#x}", seen->location));
      }
    }
    if (first == nullptr) return;
    const bool odd = counter_of(*first) && refuses_counter(*counter_of(*first));
    for (const std::size_t probe : members) {
      const Seen* seen = reading_.seen(probe);
      if (seen == nullptr) continue;
      if (unresolved) {
        report_.fails(
            probe, Step::attach,
            facts_.dangling(*unresolved) ? reason::sibling_dangling : reason::sibling,
            fmt::format("the note at {:#x}", facts_.probes[*unresolved].note.file_offset.value));
      } else if (odd) {
        report_.fails(probe, Step::attach, reason::semaphore_odd);
      } else {
        attached(probe, *seen, *first);
      }
    }
  }

 private:
  // The counter's file offset, unchecked; nothing where no note names one or there is no .probes.
  std::optional<std::uint64_t> counter_of(const Seen& first) const {
    if (first.semaphore == 0 || cursor_.counters == nullptr) return std::nullopt;
    return first.semaphore - cursor_.counters->addr.value + cursor_.counters->offset.value;
  }

  void attached(std::size_t probe, const Seen& seen, const Seen& first) {
    report_.dangles(probe, reason::dangling_attached);
    const std::uint64_t site = *resolve(facts_, seen.location);
    const auto offset = counter_of(first);
    check_site(facts_, probe, site, report_);
    check_arguments(facts_, probe, *arguments_, report_);
    if (counters_.conflict(site, offset.value_or(0))) {
      return report_.fails(probe, Step::attach, reason::semaphore_conflict);
    }
    if (const auto fault = field_fault(facts_, probe); !fault.empty()) {
      return report_.fails(probe, Step::semaphore, fault);
    }
    if (seen.semaphore == 0) return;
    if (seen.semaphore != first.semaphore) {
      report_.fails(probe, Step::semaphore, reason::semaphore_sibling);
    } else if (!offset) {
      report_.fails(probe, Step::semaphore, reason::semaphore_no_probes);
    } else if (const auto fault = counter_fault(facts_, probe, *offset); !fault.empty()) {
      report_.fails(probe, Step::semaphore, fault);
    }
  }

  const Facts& facts_;
  const Reading& reading_;
  const SectionCursor& cursor_;
  ArgumentRule* arguments_;
  Report& report_;
  Counters counters_;
};

void read_like_bcc(const Facts& facts, Report& report, ArgumentRule* arguments) {
  const SectionCursor cursor(facts.file);
  Reading reading(facts);
  for (const Section* section : facts.note_sections) {
    if (section->index < cursor.notes_from) {
      reading.skip_section(*section, reason::section_order);
    } else if (section->type != SHT_NOTE) {
      reading.skip_section(*section, reason::section_type);
    } else {
      read_section(facts, *section, cursor.first_code, reading);
    }
  }
  reading.tell(report);
  Attach attach(facts, reading, cursor, arguments, report);
  for (const auto& members : facts.groups) attach.group(members);
}

}  // namespace
}  // namespace as_bcc

void bcc(const Facts& facts, Report& report) {
  as_bcc::read_like_bcc(facts, report, bcc_arguments);
}

void bpftrace_0_17(const Facts& facts, Report& report) {
  as_bcc::read_like_bcc(facts, report, bpftrace_0_17_arguments);
}

}  // namespace reprobe::consumers
