// Tetragon: UsdtTargets() of pkg/elf/usdt_linux.go. It resolves all notes of the file at once, and
// one that it cannot resolve ends that.
#include <fmt/format.h>

#include "libprobe/tracers/alone.hpp"
#include "libprobe/tracers/reasons.hpp"

namespace reprobe::consumers {
namespace as_tetragon {
namespace {

// Each argument stands alone: no scanner runs from one into the next.
std::optional<ArgumentFault> arguments(std::string_view text, std::uint16_t machine) {
  if (machine != EM_X86_64 && machine != EM_AARCH64 && !text.empty()) {
    return ArgumentFault{1, reason::argument_machine, text};
  }
  return each_argument(text, machine, libbpf_arguments);
}

// A short descriptor or a string without its end is an error for the file.
bool read_section(const Facts& facts, const Section& section, Reading& reading) {
  Section as_read = section;
  as_read.addralign = Size{4};
  bool sound = true;
  walk_like_bfd(facts, as_read, [&](const RawNote& raw) {
    if (!exact_owner(facts, section, raw)) {
      reading.skip(section, raw, reason::note_owner);
    } else if (raw.type != NT_STAPSDT) {
      reading.skip(section, raw, reason::note_type);
    } else {
      const auto read =
          decode_descriptor(descriptor_bytes(facts, section, raw), 8, facts.file.header().order);
      sound = read && read->arguments_terminated;
      if (sound) reading.take(section, raw, *read);
    }
    return sound;
  });
  return sound;
}

bool in_segment(const Facts& facts, std::uint64_t address, bool code) {
  const Segment* segment = facts.file.load_segment(VirtAddr{address});
  return segment != nullptr && ((segment->flags & PF_X) != 0) == code;
}

// Why the notes cannot be resolved, "" where they can.
std::string_view file_fault(const Facts& facts, const Reading& reading) {
  for (std::size_t i = 0; i < facts.probes.size(); ++i) {
    const Seen* seen = reading.seen(i);
    if (seen == nullptr) continue;
    if (!in_segment(facts, moved_by_base(facts, *seen, seen->location), true)) {
      return reason::file_segment;
    }
    if (seen->semaphore != 0 && !in_segment(facts, seen->semaphore, false)) {
      return reason::semaphore_segment;
    }
  }
  return "";
}

}  // namespace
}  // namespace as_tetragon

void tetragon(const Facts& facts, Report& report) {
  Reading reading(facts);
  bool sound = true;
  read_sections(facts, reading, {.notes_only = true}, [&](const Section& section) {
    sound = sound && as_tetragon::read_section(facts, section, reading);
  });
  if (!facts.file.header().is64) {
    reading.refuse(reason::file_class);
  } else if (!sound) {
    reading.refuse(reason::malformed_note);
  } else if (const auto fault = as_tetragon::file_fault(facts, reading); !fault.empty()) {
    reading.refuse(fault);
  }
  reading.tell(report);
  Counters counters;
  for (std::size_t i = 0; i < facts.probes.size(); ++i) {
    const Seen* seen = reading.seen(i);
    if (seen == nullptr) continue;
    const auto site = offset_in_load(facts, moved_by_base(facts, *seen, seen->location));
    const auto counter =
        seen->semaphore == 0 ? std::nullopt : offset_in_load(facts, seen->semaphore);
    attach_alone(facts, i, site.value_or(0), counter, counters, report);
    check_arguments(facts, i, as_tetragon::arguments, report);
  }
}

}  // namespace reprobe::consumers
