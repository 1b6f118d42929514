// perf: construct_sdt_notes_list() and populate_sdt_note() of symbol-elf.c, and
// probe_cache__scan_sdt() of probe-file.c, which keeps nothing where one note fails.
#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "libprobe/tracers/kernel.hpp"
#include "libprobe/tracers/reasons.hpp"
#include "libprobe/tracers/rules.hpp"

namespace reprobe::consumers {
namespace as_perf {
namespace {

// lsdir_bid_tail_filter() of build-id.c, SBUILD_ID_MIN_SIZE: what it does not take is not listed.
// Longer ids than 20 bytes are cut. Tried with perf 6.1: 16, 17, 18, 20, 21, 24 and 32 bytes.
constexpr std::size_t kBuildIdDigits = 32;

// A note that cannot be decoded fails the scan; one of another type ends it in peace.
bool read_section(const Facts& facts, const Section& section, Reading& reading) {
  const ElfHeader& header = facts.file.header();
  bool failed = false;
  walk_like_libelf(facts, section, [&](const RawNote& raw) {
    if (!exact_owner(facts, section, raw)) {
      reading.skip(section, raw, reason::note_owner);
      return true;
    }
    if (raw.type != NT_STAPSDT) {
      reading.skip(section, raw, reason::note_type);
      return false;
    }
    const auto read =
        decode_descriptor(descriptor_bytes(facts, section, raw), header.word(), header.order);
    failed = !read || read->fields.name.empty();
    if (!failed) reading.take(section, raw, *read);
    return !failed;
  });
  return !failed;
}

Reading read(const Facts& facts) {
  Reading reading(facts);
  if (facts.file.build_id().size() < kBuildIdDigits) {
    reading.refuse(reason::build_id);
    return reading;
  }
  bool sound = true;
  const SectionsRead sections{.first_only = true, .notes_only = true, .not_loaded = true};
  read_sections(facts, reading, sections,
                [&](const Section& section) { sound = read_section(facts, section, reading); });
  if (!sound) reading.refuse(reason::malformed_note);
  return reading;
}

// Does an argument of a note that perf reads end its scan?
bool stops(const Facts& facts, const Reading& reading) {
  for (std::size_t i = 0; i < facts.probes.size(); ++i) {
    if (reading.seen(i) == nullptr) continue;
    const auto fault = perf_arguments(facts.probes[i].note.arguments, facts.file.header().machine);
    if (fault && fault->reason == reason::argument_stops_scan) return true;
  }
  return false;
}

// is_c_func_name() of util.c, which parse_perf_probe_event_name() of probe-event.c asks about both
// parts of each line of its cache; one that it refuses fails the cache. The group is
// "sdt_PROVIDER".
bool is_identifier(std::string_view text) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  return std::ranges::all_of(text, fits);
}

// Blanks end a word of the line: what is behind them is read as something else.
bool is_refused_name(const Note& note) {
  const std::string_view name(note.name);
  const std::string_view word = name.substr(0, name.find(' '));
  const bool digit = !word.empty() && word.front() >= '0' && word.front() <= '9';
  return !is_identifier(note.provider) || !is_identifier(word) || digit;
}

bool has_refused_name(const Facts& facts, const Reading& reading) {
  for (std::size_t i = 0; i < facts.probes.size(); ++i) {
    if (reading.seen(i) != nullptr && is_refused_name(facts.probes[i].note)) return true;
  }
  return false;
}

// sdt_adjust_loc(): the section's OFFSET, and note.base is an address.
std::uint64_t site_of(const Facts& facts, const Seen& seen) {
  std::uint64_t offset = seen.location;
  if (facts.base != nullptr && facts.base->offset.value != 0) {
    offset += facts.base->offset.value - seen.base;
  }
  return wrapped(facts, offset);
}

// sdt_adjust_refctr(): without .probes the address is taken for the offset.
std::uint64_t counter_of(const Facts& facts, const Seen& seen) {
  std::uint64_t counter = seen.semaphore;
  if (counter != 0 && facts.counters != nullptr && facts.counters->offset.value != 0) {
    counter -= facts.counters->addr.value - facts.counters->offset.value;
  }
  return wrapped(facts, counter);
}

// strlist__add() says -EEXIST for a definition that an earlier note of the same name has given.
// The scan goes on, but returns what the last note gave.
bool last_repeats(const Facts& facts, const Reading& reading) {
  std::size_t last = facts.probes.size();
  while (last > 0 && reading.seen(last - 1) == nullptr) --last;
  if (last == 0) return false;
  const auto definition = [&](std::size_t probe) {
    const Seen& seen = *reading.seen(probe);
    return std::tuple(
        site_of(facts, seen), counter_of(facts, seen),
        perf_definition(facts.probes[probe].note.arguments, facts.file.header().machine));
  };
  const auto wanted = definition(--last);
  return std::ranges::any_of(facts.groups[facts.group_of[last]], [&](std::size_t probe) {
    return probe != last && reading.seen(probe) != nullptr && definition(probe) == wanted;
  });
}

// `perf probe` makes one event of all sites of a name. The kernel (trace_probe.c,
// trace_probe_compare_arg_type) wants the same arguments at each, and perf takes none then.
bool arguments_differ(const Facts& facts, const Reading& reading, std::size_t index) {
  const auto types = [&](std::size_t probe) {
    std::vector<std::optional<int>> sizes;
    for (const Argument& argument : facts.probes[probe].arguments) sizes.push_back(argument.size);
    return sizes;
  };
  std::optional<std::vector<std::optional<int>>> first;
  for (const std::size_t probe : facts.groups[index]) {
    if (reading.seen(probe) == nullptr) continue;
    if (!first) first = types(probe);
    if (types(probe) != *first) return true;
  }
  return false;
}

void check(const Facts& facts, std::size_t index, const Seen& seen, Counters& counters,
           Report& report) {
  report.dangles(index, reason::dangling_attached);
  check_site(facts, index, site_of(facts, seen), report);
  check_arguments(facts, index, perf_arguments, report);
  const std::uint64_t counter = counter_of(facts, seen);
  if (counters.conflict(site_of(facts, seen), counter)) {
    return report.fails(index, Step::attach, reason::semaphore_conflict);
  }
  if (const auto fault = field_fault(facts, index); !fault.empty()) {
    return report.fails(index, Step::semaphore, fault);
  }
  if (seen.semaphore == 0) return;
  if (refuses_counter(counter)) return report.fails(index, Step::attach, reason::semaphore_odd);
  if (const auto fault = counter_fault(facts, index, counter); !fault.empty()) {
    report.fails(index, Step::semaphore, fault);
  }
}

}  // namespace
}  // namespace as_perf

void perf(const Facts& facts, Report& report) {
  Reading reading = as_perf::read(facts);
  if (as_perf::stops(facts, reading)) {
    reading.refuse(reason::argument_stops_scan);
  } else if (as_perf::last_repeats(facts, reading)) {
    reading.refuse(reason::last_repeats);
  } else if (as_perf::has_refused_name(facts, reading)) {
    reading.refuse(reason::name_not_c);
  }
  reading.tell(report);
  Counters counters;
  for_each_seen(facts, reading, [&](std::size_t probe, const Seen& seen) {
    as_perf::check(facts, probe, seen, counters, report);
  });
  for (std::size_t group = 0; group < facts.groups.size(); ++group) {
    if (!as_perf::arguments_differ(facts, reading, group)) continue;
    for (const std::size_t probe : facts.groups[group]) {
      if (reading.seen(probe) == nullptr) continue;
      report.fails(probe, Step::attach, reason::arguments_differ);
    }
  }
}

}  // namespace reprobe::consumers
