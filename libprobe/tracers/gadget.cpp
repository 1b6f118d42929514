// Inspektor Gadget: getUsdtInfo() and encodeArgument() of pkg/uprobetracer/usdt.go.
#include <fmt/format.h>

#include "libprobe/notes/arguments.hpp"
#include "libprobe/tracers/alone.hpp"
#include "libprobe/tracers/reasons.hpp"
#include "libprobe/tracers/text_scan.hpp"
#include "libprobe/tracers/x86_registers.hpp"

namespace reprobe::consumers {
namespace as_gadget {
namespace {

constexpr std::size_t kMostArguments = 12;

bool percent_register(TextScan& scan) {
  if (!scan.literal('%')) return false;
  const auto name = scan.run([](char c) { return is_lower(c) || is_digit(c); }, 16);
  return name && is_x86_general(*name);
}

// "N@%reg" and "N@OFFSET(%reg)" with an offset of 16 bits.
std::optional<ArgumentFault> one(std::string_view text, std::uint16_t machine) {
  TextScan scan(text);
  const auto size = scan.number();
  if (!size || !is_usual_size(*size) || !scan.literal('@'))
    return ArgumentFault{1, reason::argument_size, text};
  bool read = false;
  if (scan.peek() == '%') {
    read = percent_register(scan);
  } else if (is_digit(scan.peek()) || scan.peek() == '-') {
    const auto offset = scan.number();
    read = offset && *offset >= -0x8000 && *offset <= 0x7fff && scan.literal('(') &&
           percent_register(scan) && scan.literal(')');
  }
  if (read && scan.done()) return std::nullopt;
  return ArgumentFault{1, operand_reason(text, machine), text};
}

std::optional<ArgumentFault> arguments(std::string_view text, std::uint16_t machine) {
  if (text.empty()) return std::nullopt;
  if (machine != EM_X86_64) return ArgumentFault{1, reason::argument_machine, text};
  // It ends itself there: an index behind the end of an array.
  if (parse_arguments(text, machine).size() > kMostArguments) {
    return ArgumentFault{kMostArguments + 1, reason::too_many_arguments, ""};
  }
  return each_argument(text, machine, one);
}

void read_section(const Facts& facts, const Section& section, Reading& reading) {
  Section as_read = section;
  as_read.addralign = Size{4};
  walk_like_libelf(facts, as_read, [&](const RawNote& raw) {
    if (!exact_owner(facts, section, raw)) {
      reading.skip(section, raw, reason::note_owner);
    } else if (raw.type != NT_STAPSDT) {
      reading.skip(section, raw, reason::note_type);
    } else if (const auto read = decode_descriptor(descriptor_bytes(facts, section, raw), 8,
                                                   facts.file.header().order)) {
      reading.take(section, raw, *read);
    } else {
      reading.skip(section, raw, reason::note_end);
    }
    return true;
  });
}

// vaddr2ElfOffset(): any program header that holds the address in memory; the first.
std::optional<std::uint64_t> file_offset(const Facts& facts, std::uint64_t address) {
  for (const Segment& segment : facts.file.segments()) {
    if (!in_range(address, segment.vaddr.value, segment.memsz.value)) continue;
    return address - segment.vaddr.value + segment.offset.value;
  }
  return std::nullopt;
}

// Of one provider:name, together: one without an offset ends it.
void group(const Facts& facts, const Reading& reading, const std::vector<std::size_t>& members,
           Counters& counters, Report& report) {
  const auto moved = [&](const Seen& seen, std::uint64_t address) {
    return address + facts.base->addr.value - seen.base;
  };
  std::optional<std::size_t> unresolved;
  for (const std::size_t probe : members) {
    const Seen* seen = reading.seen(probe);
    if (seen == nullptr || file_offset(facts, moved(*seen, seen->location))) continue;
    if (!unresolved) unresolved = probe;
    report.fails(probe, Step::attach, reason::no_segment);
  }
  for (const std::size_t probe : members) {
    const Seen* seen = reading.seen(probe);
    if (seen == nullptr) continue;
    if (unresolved) {
      report.fails(
          probe, Step::attach,
          facts.dangling(*unresolved) ? reason::sibling_dangling : reason::sibling,
          fmt::format("the note at {:#x}", facts.probes[*unresolved].note.file_offset.value));
      continue;
    }
    std::optional<std::uint64_t> counter;
    if (seen->semaphore != 0) counter = file_offset(facts, moved(*seen, seen->semaphore));
    attach_alone(facts, probe, *file_offset(facts, moved(*seen, seen->location)), counter, counters,
                 report);
    check_arguments(facts, probe, arguments, report);
  }
}

}  // namespace
}  // namespace as_gadget

void gadget(const Facts& facts, Report& report) {
  Reading reading(facts);
  const SectionsRead sections{.first_only = true, .notes_only = true};
  read_sections(facts, reading, sections,
                [&](const Section& section) { as_gadget::read_section(facts, section, reading); });
  if (!facts.file.header().is64) {
    reading.refuse(reason::file_class);
  } else if (facts.base == nullptr || facts.base->type != SHT_PROGBITS) {
    reading.refuse(reason::base_missing);
  }
  reading.tell(report);
  Counters counters;
  for (const auto& members : facts.groups)
    as_gadget::group(facts, reading, members, counters, report);
}

}  // namespace reprobe::consumers
