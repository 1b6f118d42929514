#ifdef REPROBE_LIEF
#include "libprobe/verify/lief_notes.hpp"

#include <optional>
#include <stdexcept>

#include "libprobe/elf/bytes.hpp"
#include "libprobe/elf/constants.hpp"
#include "libprobe/elf/file.hpp"

namespace reprobe::second_reader {
namespace {

// Numbers that the System V ABI leaves to operating systems and programs, and nobody uses.
constexpr std::uint32_t kHiddenSection = 0x8fff0007, kHiddenSegment = 0x6fff0007;
// A few hundred of the usual length: LIEF 0.9 reads them in a hundredth of a second.
constexpr std::uint64_t kManyNotes = 16384;

std::optional<ElfFile> open(const std::string& path) {
  auto source = map_file(path);
  if (!source) return std::nullopt;
  auto file = ElfFile::open(std::move(*source));
  if (!file) return std::nullopt;
  return std::move(*file);
}

bool has_many(const std::string& path) {
  const auto file = open(path);
  if (!file) return false;
  const auto many = [](const auto& items, std::uint32_t type, const auto& size) {
    std::uint64_t left = kManyNotes;
    return std::ranges::any_of(items, [&](const auto& item) {
      if (item.type != type) return false;
      const bool more = size(item) > left;
      left -= std::min(left, size(item));
      return more;
    });
  };
  return many(file->sections(), SHT_NOTE, [](const Section& s) { return s.size.value; }) ||
         many(file->segments(), PT_NOTE, [](const Segment& s) { return s.filesz.value; });
}

// sh_type is the second word of a section header, p_type the first of a program header, in files of
// both classes.
std::vector<std::uint8_t> without_notes(const ElfFile& file) {
  const auto all =
      file.source().slice(FileOffset{0}, Size{file.source().size()}, "the file for LIEF");
  if (!all) throw std::runtime_error(all.error().message);
  Bytes bytes(all->begin(), all->end());
  const std::endian order = file.header().order;
  for (const Section& section : file.sections()) {
    if (section.type != SHT_NOTE) continue;
    store_uint(bytes, static_cast<std::size_t>(section.header_offset.value) + 4, 4, order,
               kHiddenSection);
  }
  for (const Segment& segment : file.segments()) {
    if (segment.type != PT_NOTE) continue;
    const std::uint64_t at = file.header().phoff.value + segment.index * file.header().phentsize;
    store_uint(bytes, static_cast<std::size_t>(at), 4, order, kHiddenSegment);
  }
  std::vector<std::uint8_t> result(bytes.size());
  std::ranges::transform(bytes, result.begin(),
                         [](std::byte b) { return std::to_integer<std::uint8_t>(b); });
  return result;
}

// LIEF 0.9 keeps the terminator of the owner's name.
std::string_view owner_of(const lief::Note& note) {
  const std::string_view name = note.name();
  return name.substr(0, name.find('\0'));
}

// NT_GNU_BUILD_ID, and the number of LIEF's own GNU_BUILD_ID in the releases that do not give the
// file's.
constexpr std::uint64_t kBuildId = 3;

}  // namespace

bool is_note_type(std::uint64_t type) { return type == SHT_NOTE || type == kHiddenSection; }
bool is_note_segment(std::uint64_t type) { return type == PT_NOTE || type == kHiddenSegment; }

bool has_many_notes(const std::string& before, const std::string& after) {
  return has_many(before) || has_many(after);
}

std::unique_ptr<const lief::Binary> parse(const std::string& path, bool hide_notes) {
  std::unique_ptr<const lief::Binary> binary;
  const auto file = hide_notes ? open(path) : std::nullopt;
  if (file) {
    const std::vector<std::uint8_t> bytes = without_notes(*file);
    binary = lief::Parser::parse(bytes);
  } else {
    binary = lief::Parser::parse(path);
  }
  // Releases since 0.12 give null where 0.9 throws.
  if (!binary) throw std::runtime_error("not an ELF file for LIEF");
  return binary;
}

void compare_notes(const lief::Binary& before, const lief::Binary& after, const NameSet& changed,
                   Differences& out) {
  // LIEF does not say which section a note is from, and reads a malformed one, or one of 8-byte
  // alignment, as several of whatever owner. The bytes of the unchanged sections are compared.
  const bool gnu_only = std::ranges::any_of(
      changed, [](const std::string& name) { return name.starts_with(".note"); });
  const bool new_build_id = changed.contains(".note.gnu.build-id");
  const auto compared = [&](const lief::Binary& binary) {
    auto notes = items(binary.notes());
    std::erase_if(notes, [&](const auto* note) {
      const bool gnu = owner_of(*note) == "GNU";
      return owner_of(*note) == "stapsdt" || (gnu_only && !gnu) ||
             (new_build_id && gnu && number(note->type()) == kBuildId);
    });
    return notes;
  };
  const auto left = compared(before);
  const auto right = compared(after);
  const std::size_t count = common("notes", left, right, out);
  for (std::size_t i = 0; i < count; ++i) {
    const std::string item = fmt::format("note {} {}", i, printable(owner_of(*left[i])));
    if (owner_of(*left[i]) != owner_of(*right[i])) {
      out.add(fmt::format("{}: is now {}", item, printable(owner_of(*right[i]))));
    }
    compare_fields(item, {{"type", number(left[i]->type()), number(right[i]->type())}}, out);
    if (!std::ranges::equal(left[i]->description(), right[i]->description())) {
      out.add(item + ": other description");
    }
  }
}

}  // namespace reprobe::second_reader
#endif  // REPROBE_LIEF
