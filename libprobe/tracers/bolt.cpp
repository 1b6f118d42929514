// BOLT: SDTRewriter.cpp. It moves the code of the program and the notes with it: a note is "listed"
// where it is read and "attached" where it is moved rightly.
#include <fmt/format.h>

#include <unordered_map>

#include "libprobe/tracers/reasons.hpp"
#include "libprobe/tracers/rules.hpp"

namespace reprobe::consumers {
namespace as_bolt {
namespace {

std::size_t string_end(std::string_view text, std::size_t from) {
  const auto end = from > text.size() ? std::string_view::npos : text.find('\0', from);
  return end == std::string_view::npos ? text.size() : end + 1;
}

// readSection(): the sizes in the note's header are not looked at.
void read_section(const Facts& facts, const Section& section, Reading& reading) {
  const auto bytes = facts.file.contents(section);
  if (!bytes) return;
  const std::string_view text = as_text(*bytes);
  std::size_t at = 0;
  while (at < text.size() && text.size() - at >= kNoteHeader) {
    RawNote raw{.at = at};
    const std::size_t desc = string_end(text, at + kNoteHeader);
    const std::size_t provider = desc + 24;
    const std::size_t name = string_end(text, provider);
    const std::size_t arguments = string_end(text, name);
    const std::size_t end = string_end(text, arguments);
    if (provider >= text.size()) return;
    const auto read =
        decode_descriptor(bytes->subspan(desc, end - desc), 8, facts.file.header().order);
    if (read) reading.take(section, raw, *read);
    at = (end + 3) / 4 * 4;
  }
}

bool knows(const ElfHeader& header) {
  return header.is64 && (header.machine == EM_X86_64 || header.machine == EM_AARCH64 ||
                         header.machine == EM_RISCV);
}

// preCFGInitializer(): "no instruction matches SDT offset", "nop instruction expected".
bool is_error(const Probe& probe) {
  return probe.facts.place == Place::executable && probe.facts.function && probe.facts.has_bytes &&
         (probe.facts.nop.kind == NopKind::none || probe.facts.boundary.result == Boundary::no);
}

// BOLT 19 crashes there.
bool base_is_at_start(const Facts& facts) {
  const Section* text = facts.file.section(".text");
  if (facts.base == nullptr || text == nullptr || !facts.base->allocated()) return false;
  const Segment* segment = facts.file.load_segment(facts.base->addr);
  const bool code = segment != nullptr && (segment->flags & PF_X) != 0;
  return facts.base->addr == text->addr || (code && facts.base->addr == segment->vaddr);
}

void check(const Facts& facts, const Reading& reading, Report& report) {
  std::unordered_map<std::uint64_t, std::size_t> last;  // by address: the note that is kept
  for (std::size_t i = 0; i < facts.probes.size(); ++i) {
    if (const Seen* seen = reading.seen(i)) last[seen->location] = i;
  }
  for (std::size_t i = 0; i < facts.probes.size(); ++i) {
    const Seen* seen = reading.seen(i);
    if (seen == nullptr) continue;
    if (last[seen->location] != i) {
      report.fails(i, Step::attach, reason::one_per_address);
    } else if (seen->location != facts.probes[i].site.value) {
      report.fails(
          i, Step::attach, reason::wrong_address,
          fmt::format("{:#x}, right is {:#x}", seen->location, facts.probes[i].site.value));
    }
  }
}

}  // namespace
}  // namespace as_bolt

void bolt(const Facts& facts, Report& report) {
  Reading reading(facts);
  if (!as_bolt::knows(facts.file.header())) {
    reading.refuse(reason::machine);
  } else if (as_bolt::base_is_at_start(facts)) {
    reading.refuse(reason::base_position);
  } else if (facts.note_sections.size() > 1) {
    reading.refuse(reason::second_section);  // getUniqueSectionByName() finds neither
  } else {
    for (const Section* section : facts.note_sections) {
      // Measured: its new contents of a loaded or widely aligned section do not reach the output.
      if (section->allocated()) {
        reading.skip_section(*section, reason::section_alloc);
      } else if (section->addralign.value > 8) {
        reading.skip_section(*section, reason::note_layout);
      } else {
        as_bolt::read_section(facts, *section, reading);
      }
    }
  }
  reading.tell(report);
  for (std::size_t i = 0; i < facts.probes.size(); ++i) {
    if (reading.seen(i) == nullptr || !as_bolt::is_error(facts.probes[i])) continue;
    const std::string where =
        fmt::format("the note at {:#x}", facts.probes[i].note.file_offset.value);
    for (std::size_t k = 0; k < facts.probes.size(); ++k) {
      report.fails(k, Step::attach, reason::not_a_nop, where);
    }
    return report.dangles(i, reason::not_a_nop);
  }
  as_bolt::check(facts, reading, report);
}

}  // namespace reprobe::consumers
