// The OpenTelemetry eBPF profiler: readSDTNotes() of usdt/notes.go and what uses it in
// usdt/discoverer.go. It attaches to the probes of its own providers and reads no arguments.
#include <fmt/format.h>

#include "libprobe/tracers/alone.hpp"
#include "libprobe/tracers/reasons.hpp"

namespace reprobe::consumers {
namespace as_otel {
namespace {

// A descriptor that ends in a string makes it refuse the file; the arguments are not looked at.
bool read_section(const Facts& facts, const Section& section, Reading& reading) {
  const ElfHeader& header = facts.file.header();
  bool sound = true;
  walk_like_libelf(facts, section, [&](const RawNote& raw) {
    if (raw.type != NT_STAPSDT) {
      reading.skip(section, raw, reason::note_type);
      return true;
    }
    const auto read = decode_descriptor(descriptor_bytes(facts, section, raw), 8, header.order);
    sound = read.has_value();
    if (sound) reading.take(section, raw, *read);
    return sound;
  });
  return sound;
}

// elfFileOffset(): of sites the first executable PT_LOAD with bytes of the file there, of counters
// any.
std::optional<std::uint64_t> file_offset(const Facts& facts, std::uint64_t address, bool code) {
  for (const Segment& segment : facts.file.segments()) {
    if (segment.type != PT_LOAD || (code && (segment.flags & PF_X) == 0)) continue;
    if (!in_range(address, segment.vaddr.value, segment.filesz.value)) continue;
    return address - segment.vaddr.value + segment.offset.value;
  }
  return std::nullopt;
}

void check(const Facts& facts, std::size_t index, const Seen& seen, Counters& counters,
           Report& report) {
  const std::uint64_t address = moved_by_base(facts, seen, seen.location);
  const auto site = file_offset(facts, address, true);
  if (!site) {
    return report.fails(index, Step::attach, reason::no_segment, fmt::format("{:#x}", address));
  }
  std::optional<std::uint64_t> counter;
  if (seen.semaphore != 0) {
    counter = file_offset(facts, moved_by_base(facts, seen, seen.semaphore), false);
    if (!counter) return report.fails(index, Step::attach, reason::semaphore_not_in_file);
  }
  attach_alone(facts, index, *site, counter, counters, report);
}

}  // namespace
}  // namespace as_otel

void otel(const Facts& facts, Report& report) {
  Reading reading(facts);
  const ElfHeader& header = facts.file.header();
  bool sound = true;
  read_sections(facts, reading, {.notes_only = true}, [&](const Section& section) {
    sound = sound && as_otel::read_section(facts, section, reading);
  });
  if (!header.is64 || header.order != std::endian::little) {
    reading.refuse(reason::file_class);
  } else if (!sound) {
    reading.refuse(reason::malformed_note);
  } else if (facts.base == nullptr || facts.base->addr.value == 0) {
    reading.refuse(reason::base_missing);
  }
  reading.tell(report);
  Counters counters;
  for_each_seen(facts, reading, [&](std::size_t probe, const Seen& seen) {
    as_otel::check(facts, probe, seen, counters, report);
  });
}

}  // namespace reprobe::consumers
