// LTTng: lttng_elf_get_sdt_probe_offsets() of lttng-elf.c. It records that a probe was hit, not its
// arguments; a probe with a counter it refuses.
#include <fmt/format.h>

#include "libprobe/tracers/kernel.hpp"
#include "libprobe/tracers/reasons.hpp"
#include "libprobe/tracers/rules.hpp"

namespace reprobe::consumers {
namespace as_lttng {
namespace {

// Padding to 4, whatever sh_addralign says; a name of size 0 ends every request.
bool read_section(const Facts& facts, const Section& section, Reading& reading) {
  Section as_read = section;
  as_read.addralign = Size{4};
  const ElfHeader& header = facts.file.header();
  bool sound = true;
  walk_like_bfd(facts, as_read, [&](const RawNote& raw) {
    sound = raw.namesz != 0;
    if (!sound) return false;
    if (raw.type != NT_STAPSDT) {
      reading.skip(section, raw, reason::note_type);
    } else if (!exact_owner(facts, section, raw)) {
      reading.skip(section, raw, reason::note_owner);
    } else if (const auto read =
                   decode_descriptor(descriptor_bytes(facts, section, raw), 8, header.order);
               !read) {
      reading.skip(section, raw, reason::note_layout);
    } else {
      reading.take(section, raw, *read);
    }
    return true;
  });
  return sound;
}

// lttng_elf_convert_addr_in_text_to_offset(): the end counts as inside.
std::optional<std::uint64_t> offset_in_text(const Section* text, std::uint64_t address) {
  if (text == nullptr || address < text->addr.value ||
      address - text->addr.value > text->size.value) {
    return std::nullopt;
  }
  return text->offset.value + (address - text->addr.value);
}

// Why the request for one provider:name fails, and by which of its notes.
struct Refusal {
  std::size_t probe{};
  std::string_view reason;
};

std::optional<Refusal> refusal(const Reading& reading, const std::vector<std::size_t>& members,
                               const Section* text) {
  for (const std::size_t probe : members) {
    const Seen* seen = reading.seen(probe);
    if (seen == nullptr) continue;
    if (seen->semaphore != 0) return Refusal{probe, reason::semaphore_unsupported};
    if (!offset_in_text(text, seen->location)) return Refusal{probe, reason::outside_text};
  }
  return std::nullopt;
}

void request(const Facts& facts, const Reading& reading, const std::vector<std::size_t>& members,
             const Section* text, Report& report) {
  const auto refused = refusal(reading, members, text);
  for (const std::size_t probe : members) {
    const Seen* seen = reading.seen(probe);
    if (seen == nullptr) continue;
    if (!refused) {
      report.dangles(probe, reason::dangling_attached);
      check_site(facts, probe, *offset_in_text(text, seen->location), report);
      if (const auto fault = field_fault(facts, probe); !fault.empty()) {
        report.fails(probe, Step::semaphore, fault);
      }
    } else if (seen->semaphore != 0) {
      report.fails(probe, Step::attach, reason::semaphore_unsupported);
    } else if (!offset_in_text(text, seen->location)) {
      report.fails(probe, Step::attach, reason::outside_text, fmt::format("{:#x}", seen->location));
    } else {
      report.fails(
          probe, Step::attach,
          facts.dangling(refused->probe) ? reason::sibling_dangling : reason::sibling,
          fmt::format("the note at {:#x}", facts.probes[refused->probe].note.file_offset.value));
    }
  }
}

}  // namespace
}  // namespace as_lttng

void lttng(const Facts& facts, Report& report) {
  Reading reading(facts);
  if (!facts.file.header().is64) {
    reading.refuse(reason::file_class);
    return reading.tell(report);
  }
  bool sound = true;
  read_sections(facts, reading, {.first_only = true}, [&](const Section& section) {
    sound = as_lttng::read_section(facts, section, reading);
  });
  if (!sound) reading.refuse(reason::malformed_note);
  reading.tell(report);
  const Section* text = facts.file.section(".text");
  for (const auto& members : facts.groups) as_lttng::request(facts, reading, members, text, report);
}

}  // namespace reprobe::consumers
