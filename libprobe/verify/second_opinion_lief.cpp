// The only file of the library that includes LIEF. It uses what LIEF 0.9 and the current releases
// have in common: enumerations are compared as numbers because their names differ.
#ifdef REPROBE_LIEF
#include "libprobe/verify/second_opinion_lief.hpp"

#include <fmt/format.h>

#include <LIEF/ELF.hpp>
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <unordered_set>

#include "libprobe/elf/constants.hpp"
#include "libprobe/notes/stapsdt.hpp"
#include "libprobe/plan/undo.hpp"

namespace reprobe {
namespace {

namespace lief = LIEF::ELF;

// Names come from files that may be hostile, and go to a terminal.
std::string printable(std::string_view text) {
  constexpr std::size_t kMaxName = 80;
  std::string out(text.substr(0, kMaxName));
  std::ranges::replace_if(
      out, [](char c) { return c < ' ' || c > '~'; }, '?');
  if (text.size() > kMaxName) out += "...";
  return out;
}

class Differences {
 public:
  void add(std::string line) {
    if (lines_.size() < kMaxDifferences) {
      lines_.push_back(std::move(line));
    } else {
      ++more_;
    }
  }
  std::vector<std::string> take() {
    if (more_ != 0) lines_.push_back(fmt::format("and {} more", more_));
    return std::move(lines_);
  }

 private:
  std::vector<std::string> lines_;
  std::size_t more_{};
};

struct Field {
  const char* name;
  std::uint64_t before;
  std::uint64_t after;
};

template <typename T>
std::uint64_t number(T value) {
  return static_cast<std::uint64_t>(value);
}

void compare_fields(const std::string& item, std::initializer_list<Field> fields,
                    Differences& out) {
  for (const Field& field : fields) {
    if (field.before == field.after) continue;
    out.add(fmt::format("{}: {} was {:#x}, is {:#x}", item, field.name, field.before, field.after));
  }
}

// LIEF's iterators differ between releases; all of them can be walked once.
template <typename Range>
auto items(Range&& range) {
  std::vector<std::remove_reference_t<decltype(*range.begin())>*> out;
  for (auto& item : range) out.push_back(&item);
  return out;
}

template <typename List>
std::size_t common(const char* what, const List& before, const List& after, Differences& out) {
  if (before.size() != after.size()) {
    out.add(fmt::format("{}: there were {}, there are {}", what, before.size(), after.size()));
  }
  return std::min(before.size(), after.size());
}

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

void compare_segments(const lief::Binary& before, const lief::Binary& after, Differences& out) {
  const auto left = items(before.segments());
  const auto right = items(after.segments());
  const std::size_t count = common("segments", left, right, out);
  for (std::size_t i = 0; i < count; ++i) {
    const auto& a = *left[i];
    const auto& b = *right[i];
    compare_fields(fmt::format("segment {}", i),
                   {{"type", number(a.type()), number(b.type())},
                    {"flags", number(a.flags()), number(b.flags())},
                    {"offset", a.file_offset(), b.file_offset()},
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
    const bool may_move = type == PT_NOTE || type == PT_INTERP || type == PT_GNU_PROPERTY;
    const auto text = segment->content();
    const auto texts = texts_of(after, type);
    if (may_move && !std::ranges::search(texts, text).empty()) continue;
    out.add(fmt::format("segment of type {:#x} at {:#x}: is not what it was", type,
                        segment->virtual_address()));
  }
}

using NameSet = std::unordered_set<std::string>;
using Sections = std::vector<const lief::Section*>;

// What the number of a section in sh_link and its like means: sections that may change can have
// other numbers, but the name stays.
class SectionNames {
 public:
  explicit SectionNames(const lief::Binary& binary) {
    for (const auto* section : items(binary.sections())) names_.emplace_back(section->name());
  }
  [[nodiscard]] std::string of(std::uint64_t index) const {
    return index < names_.size() ? names_[static_cast<std::size_t>(index)]
                                 : fmt::format("section {}", index);
  }

 private:
  std::vector<std::string> names_;
};

struct Names {
  SectionNames before;
  SectionNames after;
  bool more_symbols{};  // sh_info of .symtab counts them
};

void compare_link(const std::string& item, const char* field, std::uint64_t a, std::uint64_t b,
                  const Names& names, Differences& out) {
  if (a == b) return;
  const std::string was = names.before.of(a), is = names.after.of(b);
  if (was != is || was.empty()) {
    out.add(fmt::format("{}: {} was {}, is {}", item, field, printable(was), printable(is)));
  }
}

void compare_identity(const std::string& item, const lief::Section& a, const lief::Section& b,
                      const Names& names, Differences& out) {
  compare_fields(
      item,
      {{"type", number(a.type()), number(b.type())}, {"entsize", a.entry_size(), b.entry_size()}},
      out);
  compare_link(item, "link", number(a.link()), number(b.link()), names, out);
  const bool relocations = number(a.type()) == SHT_REL || number(a.type()) == SHT_RELA;
  if (relocations || (number(a.flags()) & SHF_INFO_LINK) != 0) {
    compare_link(item, "info", number(a.information()), number(b.information()), names, out);
  } else if (!names.more_symbols || number(a.type()) != SHT_SYMTAB) {
    compare_fields(item, {{"info", number(a.information()), number(b.information())}}, out);
  }
}

void compare_unchanged_section(std::size_t index, const lief::Section& a, const lief::Section& b,
                               const Names& names, Differences& out) {
  const std::string item = fmt::format("section {} {}", index, printable(a.name()));
  if (a.name() != b.name()) out.add(fmt::format("{}: is now {}", item, printable(b.name())));
  compare_identity(item, a, b, names, out);
  compare_fields(item,
                 {{"flags", number(a.flags()), number(b.flags())},
                  {"addr", a.virtual_address(), b.virtual_address()},
                  {"offset", a.file_offset(), b.file_offset()},
                  {"size", a.size(), b.size()},
                  {"addralign", a.alignment(), b.alignment()}},
                 out);
  // A NOBITS section has no bytes; what LIEF gives for it are those of its neighbours.
  if (number(a.type()) == SHT_NOBITS || number(a.type()) == SHT_NULL) return;
  if (!std::ranges::equal(a.content(), b.content())) out.add(item + ": other contents");
}

// Those of that name in order: a name may occur more than once (COMDAT sections of a .o).
void compare_changed_section(const std::string& name, const Sections& before, const Sections& after,
                             const Names& names, Differences& out) {
  // Of several sections of notes one is left, and none is that of the others.
  if (before.size() != after.size()) return;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const bool gave_up = number(before[i]->flags()) != number(after[i]->flags());
    // A section of notes is marked as one.
    const bool marked = number(before[i]->type()) == SHT_PROGBITS &&
                        number(after[i]->type()) == SHT_NOTE && name == kStapsdtSection;
    if (!gave_up && !marked) {
      compare_identity("section " + printable(name), *before[i], *after[i], names, out);
    }
  }
}

void compare_sections(const lief::Binary& before, const lief::Binary& after, const NameSet& changed,
                      bool more_symbols, Differences& out) {
  struct Split {
    Sections unchanged;
    std::map<std::string, Sections> changed;
  };
  const auto split = [&](const lief::Binary& binary) {
    Split result;
    for (const auto* section : items(binary.sections())) {
      const std::string name(section->name());
      (changed.contains(name) ? result.changed[name] : result.unchanged).push_back(section);
    }
    return result;
  };
  const Split left = split(before);
  const Split right = split(after);
  const Names names{SectionNames(before), SectionNames(after), more_symbols};
  const std::size_t count = common("sections", left.unchanged, right.unchanged, out);
  for (std::size_t i = 0; i < count; ++i) {
    compare_unchanged_section(i, *left.unchanged[i], *right.unchanged[i], names, out);
  }
  for (const auto& [name, sections] : left.changed) {
    const auto same_name = right.changed.find(name);
    if (same_name == right.changed.end()) continue;
    compare_changed_section(name, sections, same_name->second, names, out);
  }
}

// static_symbols() became symtab_symbols() in LIEF 0.16.
template <typename Binary>
auto symtab_of(const Binary& binary) {
  if constexpr (requires { binary.symtab_symbols(); }) {
    return items(binary.symtab_symbols());
  } else {
    return items(binary.static_symbols());
  }
}

// The section header indices of the sections that may change: their symbols move with them.
std::set<std::uint64_t> changed_indices(const lief::Binary& binary, const NameSet& changed) {
  std::set<std::uint64_t> indices;
  std::uint64_t index = 0;
  for (const auto* section : items(binary.sections())) {
    if (changed.contains(std::string(section->name()))) indices.insert(index);
    ++index;
  }
  return indices;
}

template <typename Symbols>
void compare_symbols(const char* table, const Symbols& left, const Symbols& right,
                     const std::set<std::uint64_t>& moved, Differences& out) {
  const std::size_t count = common(table, left, right, out);
  for (std::size_t i = 0; i < count; ++i) {
    const auto& a = *left[i];
    const auto& b = *right[i];
    const std::string item = fmt::format("{} entry {} {}", table, i, printable(a.name()));
    if (a.name() != b.name()) out.add(fmt::format("{}: is now {}", item, printable(b.name())));
    const bool may_move = moved.contains(number(a.shndx()));
    compare_fields(item,
                   {{"value", may_move ? 0 : a.value(), may_move ? 0 : b.value()},
                    {"size", may_move ? 0 : a.size(), may_move ? 0 : b.size()},
                    {"type", number(a.type()), number(b.type())},
                    {"binding", number(a.binding()), number(b.binding())},
                    {"other", number(a.other()), number(b.other())},
                    {"shndx", may_move ? 0 : number(a.shndx()), may_move ? 0 : number(b.shndx())}},
                   out);
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

// LIEF 0.9 keeps the terminator of the owner's name.
std::string_view owner_of(const lief::Note& note) {
  const std::string_view name = note.name();
  return name.substr(0, name.find('\0'));
}

// NT_GNU_BUILD_ID, and the number of LIEF's own GNU_BUILD_ID in the releases that do not give the
// file's.
constexpr std::uint64_t kBuildId = 3;

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

std::unique_ptr<const lief::Binary> parse(const std::string& path) {
  // Releases since 0.12 give null where 0.9 throws.
  std::unique_ptr<const lief::Binary> binary = lief::Parser::parse(path);
  if (!binary) throw std::runtime_error("not an ELF file for LIEF");
  return binary;
}

}  // namespace

std::vector<std::string> lief_differences(const std::string& before, const std::string& after,
                                          const ExpectedChanges& expected,
                                          const ReadingNow& reading) {
  const NameSet changed(expected.sections.begin(), expected.sections.end());
  reading("before");
  const auto left = parse(before);
  reading("after");
  const auto right = parse(after);
  Differences out;
  compare_headers(left->header(), right->header(), out);
  auto symbols = symtab_of(*left), symbols_now = symtab_of(*right);
  if (expected.more_room) {
    compare_segments_with_room(*left, *right, out);
    for (auto* table : {&symbols, &symbols_now}) {
      std::erase_if(*table, [](const auto* symbol) {
        return std::string_view(symbol->name()).ends_with(kStubSuffix);
      });
    }
  } else {
    compare_segments(*left, *right, out);
  }
  const NameSet named(expected.symbols.begin(), expected.symbols.end());
  for (auto* table : {&symbols, &symbols_now}) {
    std::erase_if(*table, [&](const auto* symbol) { return named.contains(symbol->name()); });
  }
  compare_sections(*left, *right, changed, expected.more_room || !named.empty(), out);
  compare_symbols(".symtab", symbols, symbols_now, changed_indices(*left, changed), out);
  compare_symbols(".dynsym", items(left->dynamic_symbols()), items(right->dynamic_symbols()), {},
                  out);
  compare_dynamic_entries(*left, *right, out);
  compare_relocations(*left, *right, out);
  compare_notes(*left, *right, changed, out);
  return out.take();
}

}  // namespace reprobe
#endif  // REPROBE_LIEF
