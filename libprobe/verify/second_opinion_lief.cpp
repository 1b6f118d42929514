#ifdef REPROBE_LIEF
#include "libprobe/verify/second_opinion_lief.hpp"

#include "libprobe/elf/constants.hpp"
#include "libprobe/verify/lief_items.hpp"
#include "libprobe/verify/lief_notes.hpp"
#include "libprobe/verify/lief_sections.hpp"

namespace reprobe {
namespace second_reader {
namespace {

void compare_headers(const lief::Header& a, const lief::Header& b, Differences& out) {
  compare_fields("ELF header",
                 {{"class", number(a.identity_class()), number(b.identity_class())},
                  {"byte order", number(a.identity_data()), number(b.identity_data())},
                  {"OS ABI", number(a.identity_os_abi()), number(b.identity_os_abi())},
                  {"type", number(a.file_type()), number(b.file_type())},
                  {"machine", number(a.machine_type()), number(b.machine_type())},
                  {"version", number(a.object_file_version()), number(b.object_file_version())},
                  {"entry", a.entrypoint(), b.entrypoint()},
                  {"flags", number(a.processor_flag()), number(b.processor_flag())}},
                 out);
}

// The segment's bytes, read where each file has them, are the same.
bool same_elsewhere(const lief::Segment& a, const lief::Segment& b) {
  return std::ranges::equal(a.content(), b.content());
}

void compare_segments(const lief::Binary& before, const lief::Binary& after, bool moved_data,
                      Differences& out) {
  const auto left = items(before.segments());
  const auto right = items(after.segments());
  const std::size_t count = common("segments", left, right, out);
  for (std::size_t i = 0; i < count; ++i) {
    const auto& a = *left[i];
    const auto& b = *right[i];
    const bool moved = moved_data && same_elsewhere(a, b);
    compare_fields(fmt::format("segment {}", i),
                   {{"type", number(a.type()), number(b.type())},
                    {"flags", number(a.flags()), number(b.flags())},
                    {"offset", moved ? 0 : a.file_offset(), moved ? 0 : b.file_offset()},
                    {"vaddr", a.virtual_address(), b.virtual_address()},
                    {"paddr", a.physical_address(), b.physical_address()},
                    {"filesz", a.physical_size(), b.physical_size()},
                    {"memsz", a.virtual_size(), b.virtual_size()},
                    {"align", a.alignment(), b.alignment()}},
                   out);
  }
}

// What the segments of a type hold, put together: two that touch may have become one.
std::vector<std::uint8_t> texts_of(const lief::Binary& binary, std::uint64_t type) {
  std::vector<std::uint8_t> texts;
  for (const auto* segment : items(binary.segments())) {
    if (number(segment->type()) != type) continue;
    const auto text = segment->content();
    texts.insert(texts.end(), text.begin(), text.end());
  }
  return texts;
}

bool same_segment(const lief::Segment& a, const lief::Segment& b) {
  const bool grows = number(a.type()) == PT_LOAD && a.physical_size() == a.virtual_size();
  const bool same_sizes =
      a.physical_size() == b.physical_size() && a.virtual_size() == b.virtual_size();
  return a.type() == b.type() && number(a.flags()) == number(b.flags()) &&
         a.file_offset() == b.file_offset() && a.virtual_address() == b.virtual_address() &&
         a.physical_address() == b.physical_address() && a.alignment() == b.alignment() &&
         (same_sizes || (grows && b.physical_size() >= a.physical_size() &&
                         b.physical_size() == b.virtual_size()));
}

void compare_segments_with_room(const lief::Binary& before, const lief::Binary& after,
                                Differences& out) {
  const auto right = items(after.segments());
  for (const auto* segment : items(before.segments())) {
    const auto type = number(segment->type());
    if (type == PT_PHDR || type == PT_GNU_EH_FRAME) continue;
    if (std::ranges::any_of(right, [&](const auto* now) { return same_segment(*segment, *now); })) {
      continue;
    }
    const bool may_move = is_note_segment(type) || type == PT_INTERP || type == PT_GNU_PROPERTY;
    const auto text = segment->content();
    const auto texts = texts_of(after, type);
    if (may_move && !std::ranges::search(texts, text).empty()) continue;
    out.add(fmt::format("segment of type {:#x} at {:#x}: is not what it was", type,
                        segment->virtual_address()));
  }
}

void compare_dynamic_entries(const lief::Binary& before, const lief::Binary& after,
                             Differences& out) {
  const auto left = items(before.dynamic_entries());
  const auto right = items(after.dynamic_entries());
  const std::size_t count = common("dynamic entries", left, right, out);
  for (std::size_t i = 0; i < count; ++i) {
    compare_fields(fmt::format("dynamic entry {}", i),
                   {{"tag", number(left[i]->tag()), number(right[i]->tag())},
                    {"value", left[i]->value(), right[i]->value()}},
                   out);
  }
}

// Does the relocation apply to a section that is not loaded? LIEF reads such tables, which
// --emit-relocs keeps, in files without a dynamic relocation, and drops entries of one section that
// look like one of another: what is left of them depends on the notes. The contents of the tables
// are compared anyway. LIEF 0.9 gives a reference to the section, later releases a pointer.
template <typename Relocation>
bool is_kept(const Relocation& relocation) {
  if (!relocation.has_section()) return false;
  const auto is_loaded = [](const lief::Section& section) {
    return (number(section.flags()) & SHF_ALLOC) != 0;
  };
  if constexpr (std::is_pointer_v<decltype(relocation.section())>) {
    return !is_loaded(*relocation.section());
  } else {
    return !is_loaded(relocation.section());
  }
}

void compare_relocations(const lief::Binary& before, const lief::Binary& after, Differences& out) {
  auto left = items(before.relocations());
  auto right = items(after.relocations());
  std::erase_if(left, [](const auto* item) { return is_kept(*item); });
  std::erase_if(right, [](const auto* item) { return is_kept(*item); });
  const std::size_t count = common("relocations", left, right, out);
  for (std::size_t i = 0; i < count; ++i) {
    compare_fields(fmt::format("relocation {}", i),
                   {{"offset", left[i]->address(), right[i]->address()},
                    {"type", number(left[i]->type()), number(right[i]->type())},
                    {"symbol", number(left[i]->info()), number(right[i]->info())},
                    {"addend", number(left[i]->addend()), number(right[i]->addend())}},
                   out);
  }
}

}  // namespace
}  // namespace second_reader

std::vector<std::string> lief_differences(const std::string& before, const std::string& after,
                                          const ExpectedChanges& expected,
                                          const ReadingNow& reading) {
  using namespace second_reader;
  const NameSet changed(expected.sections.begin(), expected.sections.end());
  const bool hide_notes = has_many_notes(before, after);
  reading("before");
  const auto left = parse(before, hide_notes);
  reading("after");
  const auto right = parse(after, hide_notes);
  Differences out;
  compare_headers(left->header(), right->header(), out);
  if (expected.more_room) {
    compare_segments_with_room(*left, *right, out);
  } else {
    compare_segments(*left, *right, expected.moved_data, out);
  }
  compare_sections(*left, *right, changed, expected.more_room, out);
  compare_symbols(*left, *right, changed, expected.more_room, out);
  compare_dynamic_entries(*left, *right, out);
  compare_relocations(*left, *right, out);
  compare_notes(*left, *right, changed, out);
  return out.take();
}

}  // namespace reprobe
#endif  // REPROBE_LIEF
