#include "libprobe/tracers/reading.hpp"

#include "libprobe/tracers/reasons.hpp"

namespace reprobe::consumers {
namespace {

constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t align) {
  return (value + align - 1) / align * align;
}

ByteView bytes_of(const Facts& facts, const Section& section) {
  const auto bytes = facts.file.contents(section);
  return bytes ? *bytes : ByteView{};
}

std::optional<RawNote> raw_note(ByteView bytes, std::uint64_t at, unsigned align,
                                std::endian order) {
  if (at > bytes.size() || bytes.size() - at < kNoteHeader) return std::nullopt;
  RawNote note{.at = at};
  note.namesz = static_cast<std::uint32_t>(load_uint(bytes, at, 4, order));
  note.descsz = static_cast<std::uint32_t>(load_uint(bytes, at + 4, 4, order));
  note.type = static_cast<std::uint32_t>(load_uint(bytes, at + 8, 4, order));
  // An offset in memory and two 32-bit sizes: the sums do not wrap.
  note.name = at + kNoteHeader;
  note.desc = align_up(note.name + note.namesz, align);
  note.desc_end = note.desc + note.descsz;
  note.next = align_up(note.desc_end, align);
  return note;
}

}  // namespace

void walk_like_libelf(const Facts& facts, const Section& section, const Visit& visit) {
  const ByteView bytes = bytes_of(facts, section);
  const unsigned align = section.addralign.value == 8 ? 8 : 4;
  std::uint64_t at = 0;
  while (const auto note = raw_note(bytes, at, align, facts.file.header().order)) {
    if (note->desc > bytes.size() || note->next > bytes.size() || !visit(*note)) return;
    at = note->next;
  }
}

void walk_like_bfd(const Facts& facts, const Section& section, const Visit& visit) {
  if (section.addralign.value > 4 && section.addralign.value != 8) return;
  const ByteView bytes = bytes_of(facts, section);
  const unsigned align = section.addralign.value == 8 ? 8 : 4;
  std::uint64_t at = 0;
  while (const auto note = raw_note(bytes, at, align, facts.file.header().order)) {
    if (note->name + note->namesz > bytes.size()) return;
    if (note->descsz != 0 && note->desc_end > bytes.size()) return;
    if (!visit(*note)) return;
    at = note->next;
  }
}

Reading::Reading(const Facts& facts)
    : facts_(facts), seen_(facts.probes.size()), why_(facts.probes.size()) {}

void Reading::take(const Section& section, const RawNote& raw, const Descriptor& descriptor) {
  const auto probe = facts_.probe_at(section.offset.value + raw.at);
  if (!probe) return;
  const Note& note = facts_.probes[*probe].note;
  if (descriptor.fields.provider != note.provider || descriptor.fields.name != note.name) {
    why_[*probe] = reason::note_layout;
    return;
  }
  seen_[*probe] = Seen{descriptor.fields.location.value, descriptor.fields.base.value,
                       descriptor.fields.semaphore.value};
}

void Reading::take_strict(const Section& section, const RawNote& raw) {
  if (!exact_owner(facts_, section, raw)) return skip(section, raw, reason::note_owner);
  if (raw.type != NT_STAPSDT) return skip(section, raw, reason::note_type);
  const auto read = strict_descriptor(facts_, section, raw);
  if (!read) return skip(section, raw, reason::note_end);
  take(section, raw, *read);
}

void Reading::skip(const Section& section, const RawNote& raw, std::string_view reason) {
  if (const auto probe = facts_.probe_at(section.offset.value + raw.at)) why_[*probe] = reason;
}

void Reading::skip_section(const Section& section, std::string_view reason) {
  skipped_.emplace(section.index, reason);
}

void Reading::refuse(std::string_view reason) {
  for (auto& seen : seen_) seen.reset();
  for (auto& why : why_) why = reason;
}

void Reading::tell(Report& report) const {
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    if (seen_[i]) report.lists(i);
  }
  tell_unseen(Step::list, report);
}

void Reading::tell_unseen(Step what, Report& report) const {
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    if (seen_[i]) continue;
    std::string_view why = why_[i];
    if (why.empty()) {
      const auto skipped = skipped_.find(facts_.probes[i].note.section);
      why = skipped != skipped_.end() ? skipped->second : reason::scan_stopped;
    }
    report.fails(i, what, why);
  }
}

ByteView descriptor_bytes(const Facts& facts, const Section& section, const RawNote& raw) {
  const ByteView bytes = bytes_of(facts, section);
  if (raw.desc > bytes.size() || bytes.size() - raw.desc < raw.descsz) return {};
  return bytes.subspan(raw.desc, raw.descsz);
}

std::optional<Descriptor> strict_descriptor(const Facts& facts, const Section& section,
                                            const RawNote& raw) {
  const ElfHeader& header = facts.file.header();
  const ByteView bytes = descriptor_bytes(facts, section, raw);
  auto read = decode_descriptor(bytes, header.word(), header.order);
  if (!read || !read->arguments_terminated || read->used != bytes.size()) return std::nullopt;
  return read;
}

bool exact_owner(const Facts& facts, const Section& section, const RawNote& raw) {
  constexpr std::string_view kOwner("stapsdt", 8);
  const ByteView bytes = bytes_of(facts, section);
  return raw.namesz == kOwner.size() && bytes.size() - raw.name >= kOwner.size() &&
         as_text(bytes.subspan(raw.name, kOwner.size())) == kOwner;
}

}  // namespace reprobe::consumers
