#ifdef REPROBE_LIEF
#include "libprobe/verify/lief_sections.hpp"

#include <map>
#include <set>

#include "libprobe/elf/constants.hpp"
#include "libprobe/notes/stapsdt.hpp"
#include "libprobe/plan/undo.hpp"
#include "libprobe/verify/lief_notes.hpp"

namespace reprobe::second_reader {
namespace {

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
                        is_note_type(number(after[i]->type())) && name == kStapsdtSection;
    if (!gave_up && !marked) {
      compare_identity("section " + printable(name), *before[i], *after[i], names, out);
    }
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
void compare_table(const char* table, const Symbols& left, const Symbols& right,
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

}  // namespace

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

void compare_symbols(const lief::Binary& before, const lief::Binary& after, const NameSet& changed,
                     bool stubs, const NameSet& named, Differences& out) {
  auto symbols = symtab_of(before), symbols_now = symtab_of(after);
  if (stubs) {
    for (auto* table : {&symbols, &symbols_now}) {
      std::erase_if(*table, [](const auto* symbol) {
        return std::string_view(symbol->name()).ends_with(kStubSuffix);
      });
    }
  }
  for (auto* table : {&symbols, &symbols_now}) {
    std::erase_if(*table, [&](const auto* symbol) { return named.contains(symbol->name()); });
  }
  compare_table(".symtab", symbols, symbols_now, changed_indices(before, changed), out);
  compare_table(".dynsym", items(before.dynamic_symbols()), items(after.dynamic_symbols()), {},
                out);
}

}  // namespace reprobe::second_reader
#endif  // REPROBE_LIEF
