// bpftrace from 0.25: USDTProbeEnumerator::enumerate_probes() of elf_parser.cpp lists, libbpf
// attaches.
#include "libprobe/tracers/reasons.hpp"
#include "libprobe/tracers/rules.hpp"

namespace reprobe::consumers {
namespace {

// A counter in no segment, or in one with code, makes the whole listing fail.
bool counter_fails(const Facts& facts, std::uint64_t semaphore) {
  if (semaphore == 0) return false;
  const Segment* segment = facts.file.load_segment(VirtAddr{semaphore});
  return segment == nullptr || (segment->flags & PF_X) != 0;
}

// Foreign and malformed notes are passed over, and the listing goes on.
void read_listing(const Facts& facts, const Section& section, Reading& reading, bool& empty) {
  const ElfHeader& header = facts.file.header();
  walk_like_libelf(facts, section, [&](const RawNote& raw) {
    if (raw.type != NT_STAPSDT) {
      reading.skip(section, raw, reason::note_type);
    } else if (!exact_owner(facts, section, raw)) {
      reading.skip(section, raw, reason::note_owner);
    } else if (const auto read = decode_descriptor(descriptor_bytes(facts, section, raw),
                                                   header.word(), header.order);
               !read || read->fields.name.empty()) {
      reading.skip(section, raw, reason::malformed_note);
    } else {
      empty = empty || counter_fails(facts, read->fields.semaphore.value);
      reading.take(section, raw, *read);
    }
    return true;
  });
}

}  // namespace

void bpftrace(const Facts& facts, Report& report) {
  Reading reading(facts);
  bool empty = false;
  // It reads three longs, whatever the class is.
  if (!native_class(facts.file.header())) {
    reading.refuse(reason::file_class);
  } else {
    const SectionsRead sections{.first_only = true, .notes_only = true};
    read_sections(facts, reading, sections,
                  [&](const Section& section) { read_listing(facts, section, reading, empty); });
  }
  if (empty) reading.refuse(reason::semaphore_segment);
  reading.tell(report);
  const Reading attached = read_like_libbpf(facts);
  attached.tell_unseen(Step::attach, report);
  attach_with_libbpf(facts, attached, true, report);
}

}  // namespace reprobe::consumers
