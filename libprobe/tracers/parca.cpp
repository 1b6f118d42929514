// parca-dev/usdt: ParseProbes() of elfparse.go and ParseUSDTArguments() of args.go.
#include <fmt/format.h>

#include "libprobe/notes/arguments.hpp"
#include "libprobe/tracers/alone.hpp"
#include "libprobe/tracers/reasons.hpp"

namespace reprobe::consumers {
namespace as_parca {
namespace {

constexpr std::size_t kMostArguments = 12;

// "8f@8(%rbp)" is read as "8@8(%rbp)"; registers of floating point have no number.
std::optional<ArgumentFault> one(std::string_view text, std::uint16_t machine) {
  const auto at = text.find('@');
  const bool floating = at != std::string_view::npos && at != 0 && text[at - 1] == 'f';
  const std::string plain = floating
                                ? std::string(text.substr(0, at - 1)) + std::string(text.substr(at))
                                : std::string(text);
  const auto fault = libbpf_1_1_arguments(plain, machine);
  if (!fault) return std::nullopt;
  return ArgumentFault{1, fault->reason, text};
}

std::optional<ArgumentFault> arguments(std::string_view text, std::uint16_t machine) {
  if (machine != EM_X86_64 && machine != EM_AARCH64 && !text.empty()) {
    return ArgumentFault{1, reason::argument_machine, text};
  }
  if (parse_arguments(text, machine).size() > kMostArguments) {
    return ArgumentFault{kMostArguments + 1, reason::too_many_arguments, ""};
  }
  return each_argument(text, machine, one);
}

// The words are read as those of a little-endian file of 64 bits; nobody asks whose a note is.
void read_section(const Facts& facts, const Section& section, Reading& reading) {
  Section as_read = section;
  as_read.addralign = Size{4};
  walk_like_bfd(facts, as_read, [&](const RawNote& raw) {
    if (raw.type != NT_STAPSDT) {
      reading.skip(section, raw, reason::note_type);
    } else if (const auto read =
                   decode_descriptor(descriptor_bytes(facts, section, raw), 8, std::endian::little);
               !read || !read->arguments_terminated) {
      reading.skip(section, raw, reason::note_end);
    } else {
      reading.take(section, raw, *read);
    }
    return true;
  });
}

void check(const Facts& facts, std::size_t index, const Seen& seen, Counters& counters,
           Report& report) {
  const std::uint64_t address = moved_by_base(facts, seen, seen.location);
  // Where no segment holds it the address stays, and is taken for an offset.
  const std::uint64_t site = offset_in_load(facts, address).value_or(address);
  std::optional<std::uint64_t> counter;
  if (seen.semaphore != 0) {
    counter = offset_in_load(facts, moved_by_base(facts, seen, seen.semaphore));
  }
  attach_alone(facts, index, site, counter, counters, report);
  check_arguments(facts, index, arguments, report);
}

}  // namespace
}  // namespace as_parca

void parca(const Facts& facts, Report& report) {
  Reading reading(facts);
  // The last of the sections is the one that is read.
  for (const Section* section : facts.note_sections) {
    if (section != facts.note_sections.back()) {
      reading.skip_section(*section, reason::second_section);
    } else {
      as_parca::read_section(facts, *section, reading);
    }
  }
  const ElfHeader& header = facts.file.header();
  if (!header.is64 || header.order != std::endian::little) reading.refuse(reason::file_class);
  reading.tell(report);
  Counters counters;
  for_each_seen(facts, reading, [&](std::size_t probe, const Seen& seen) {
    as_parca::check(facts, probe, seen, counters, report);
  });
}

}  // namespace reprobe::consumers
