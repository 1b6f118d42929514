#include "libprobe/rewrite/legacy/drop_relocations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "libprobe/elf/dynamic_tables.hpp"
#include "libprobe/elf/limits.hpp"
#include "libprobe/notes/relocate.hpp"
#include "libprobe/rewrite/legacy/own_bytes.hpp"

namespace reprobe {
namespace {

tl::unexpected<Error> refuse_drop(std::string why) {
  return fail(ErrorCode::refused, "dynamic relocations", std::move(why));
}

// Generic-abi, "Relative Relocation Table": the places, ascending, as few words as the greedy way
// gives. Nothing where a place is not aligned to a word.
std::optional<std::vector<std::uint64_t>> encode_relr(const std::vector<std::uint64_t>& places,
                                                      unsigned word) {
  const std::uint64_t bits = 8 * std::uint64_t{word} - 1;
  std::vector<std::uint64_t> words;
  for (std::size_t i = 0; i < places.size();) {
    if (places[i] % word != 0) return std::nullopt;
    words.push_back(places[i]);
    std::uint64_t base = places[i] + word;
    ++i;
    for (;;) {
      std::uint64_t bitmap = 0;
      for (; i < places.size(); ++i) {
        const std::uint64_t distance = places[i] - base;
        if (distance >= bits * word || distance % word != 0) break;
        bitmap |= std::uint64_t{1} << (distance / word);
      }
      if (bitmap == 0) break;
      words.push_back(bitmap << 1 | 1);
      base += bits * word;
    }
  }
  return words;
}

class Dropper {
 public:
  Dropper(const ElfFile& file, const std::set<std::uint64_t>& places)
      : file_(file), places_(places), entries_(dynamic_entries(file)) {}

  Result<DroppedRelocations> run(Plan& plan, SectionTable& headers) {
    const auto tables = dynamic_tables(file_);
    for (const DynamicTable& table : tables) {
      auto done = table.kind == TableKind::relr ? drop_relr(plan, headers, table)
                                                : drop_entries(plan, headers, tables, table);
      if (!done) return tl::unexpected(done.error());
    }
    const auto count = count_by_sections();
    if (!count || *count != result_.count) {
      return refuse_drop("the section headers name other relocations than the dynamic section");
    }
    if (result_.count == 0) return std::move(result_);
    drop_textrel(tables);
    if (auto done = write_entries(plan); !done) return tl::unexpected(done.error());
    return std::move(result_);
  }

 private:
  [[nodiscard]] bool wanted(const DynamicRelocation& relocation) const {
    return places_.contains(relocation.place.value);
  }

  // As who reads the section headers sees them; nothing where one of their tables is no place of
  // its own.
  [[nodiscard]] std::optional<std::size_t> count_by_sections() const {
    constexpr std::size_t kMostTables = 64;  // each costs a look at all headers
    std::size_t count = 0, tables = 0;
    std::uint64_t budget = file_.source().size();  // tables may overlap in a hostile file
    for (const Section& section : file_.sections()) {
      const bool relr = section.type == SHT_RELR;
      if (!section.allocated() || (!relr && !section.holds_relocations())) continue;
      if (section.size.value == 0) continue;
      const auto bytes = file_.contents(section);
      if (++tables > kMostTables || !bytes || bytes->size() > budget ||
          !why_not_own(file_, section).empty()) {
        return std::nullopt;
      }
      budget -= bytes->size();
      DynamicTable table;
      table.kind = relr                      ? TableKind::relr
                   : section.type == SHT_REL ? TableKind::rel
                                             : TableKind::rela;
      table.bytes = *bytes;
      for_each_relocation(file_, table, [&](const DynamicRelocation& relocation) {
        count += wanted(relocation) ? 1 : 0;
      });
    }
    return count;
  }

  Result<void> drop_entries(Plan& plan, SectionTable& headers,
                            const std::vector<DynamicTable>& tables, const DynamicTable& table) {
    std::vector<bool> gone(table.bytes.size() / entry_size(file_, table.kind));
    std::size_t count = 0;
    bool known = true;
    for_each_relocation(file_, table, [&](const DynamicRelocation& relocation) {
      if (!wanted(relocation)) return;
      const std::uint16_t machine = file_.header().machine;
      known = known && (relocation.type == relative_relocation(machine) ||
                        absolute_width(machine, relocation.type) == file_.header().word());
      gone[relocation.entry] = true;
      ++count;
    });
    if (count == 0) return {};
    if (!known) return refuse_drop("a relocation of a record is neither relative nor absolute");
    if (table.plt) return refuse_drop("a relocation of a record stands among the PLT's");
    const Section* section = section_of(table);
    if (section == nullptr) return refuse_drop("their table is not one section");
    for (const DynamicTable& other : tables) {
      const bool apart = &other == &table ||
                         other.address.value >= table.address.value + table.bytes.size() ||
                         table.address.value >= other.address.value + other.bytes.size();
      if (!apart) return refuse_drop("two of their tables overlap");
    }
    const auto size = static_cast<std::size_t>(entry_size(file_, table.kind));
    Bytes left;
    for (std::size_t i = 0; i < gone.size(); ++i) {
      if (gone[i]) continue;
      const ByteView entry = table.bytes.subspan(i * size, size);
      left.insert(left.end(), entry.begin(), entry.end());
    }
    const bool rela = table.kind == TableKind::rela;
    if (DynamicEntry* relative = entry(rela ? DT_RELACOUNT : DT_RELCOUNT)) {
      const auto counted = std::min<std::uint64_t>(relative->value, gone.size());
      relative->value -= static_cast<std::uint64_t>(
          std::count(gone.begin(), gone.begin() + static_cast<std::ptrdiff_t>(counted), true));
    }
    result_.count += count;
    return put(plan, headers, *section, std::move(left), rela ? DT_RELASZ : DT_RELSZ);
  }

  Result<void> drop_relr(Plan& plan, SectionTable& headers, const DynamicTable& table) {
    std::size_t count = 0, all = 0;
    for_each_relocation(file_, table, [&](const DynamicRelocation& relocation) {
      ++all;
      count += wanted(relocation) ? 1 : 0;
    });
    if (count == 0) return {};
    if (all > kMaxEntries) return refuse_drop("more relative relocations than any link leaves");
    const Section* section = section_of(table);
    if (section == nullptr) return refuse_drop("their table is not one section");
    std::vector<std::uint64_t> left;
    left.reserve(all);
    bool ascending = true;
    std::optional<std::uint64_t> last;
    for_each_relocation(file_, table, [&](const DynamicRelocation& relocation) {
      ascending = ascending && (!last || relocation.place.value > *last);
      last = relocation.place.value;
      if (!wanted(relocation)) left.push_back(relocation.place.value);
    });
    const unsigned word = file_.header().word();
    const auto words = ascending ? encode_relr(left, word) : std::nullopt;
    if (!words || words->size() * word > table.bytes.size()) {
      return refuse_drop("what is left of DT_RELR does not fit its place");
    }
    Bytes bytes(words->size() * word);
    for (std::size_t i = 0; i < words->size(); ++i) {
      store_uint(bytes, i * word, word, file_.header().order, (*words)[i]);
    }
    result_.count += count;
    return put(plan, headers, *section, std::move(bytes), DT_RELRSZ);
  }

  // The section that is the table, no more and no less.
  [[nodiscard]] const Section* section_of(const DynamicTable& table) const {
    const std::uint32_t type = table.kind == TableKind::relr  ? SHT_RELR
                               : table.kind == TableKind::rel ? SHT_REL
                                                              : SHT_RELA;
    if (!table.whole) return nullptr;
    const auto found = std::ranges::find_if(file_.sections(), [&](const Section& section) {
      return section.allocated() && section.type == type && section.addr == table.address &&
             section.size.value == table.bytes.size() &&
             section.entsize.value == entry_size(file_, table.kind) &&
             file_.offset_of(section.addr) == section.offset;
    });
    return found == file_.sections().end() ? nullptr : &*found;
  }

  Result<void> put(Plan& plan, SectionTable& headers, const Section& section, Bytes bytes,
                   std::uint64_t size_tag) {
    if (std::string why = why_not_own(file_, section); !why.empty()) {
      return refuse_drop(section.name + ": " + why);
    }
    const std::uint64_t size = bytes.size();
    bytes.resize(static_cast<std::size_t>(section.size.value));  // R_*_NONE where nobody looks
    auto done = plan.replace(file_.source(), section.offset, std::move(bytes),
                             "the relocations of the records are gone");
    if (!done) return done;
    entry(size_tag)->value = size;
    result_.sections.push_back(section.name);
    return headers.set(section, SectionField::size, size,
                       "the relocations of the records are gone");
  }

  // The entry that counts, to be changed; nullptr where there is none.
  DynamicEntry* entry(std::uint64_t tag) {
    const DynamicEntry* found = dynamic_entry(entries_, tag);
    return found == nullptr ? nullptr
                            : &entries_[static_cast<std::size_t>(found - entries_.data())];
  }

  // DT_TEXTREL makes the dynamic linker open the code for writing: it goes where every relocation
  // that is left writes into a writable segment.
  void drop_textrel(const std::vector<DynamicTable>& tables) {
    const auto flag = [](const DynamicEntry& entry) {
      return entry.tag == DT_FLAGS && (entry.value & DF_TEXTREL) != 0;
    };
    const bool has =
        dynamic_entry(entries_, DT_TEXTREL) != nullptr || std::ranges::any_of(entries_, flag);
    if (!has) return;
    bool needed = false;
    for (const DynamicTable& table : tables) {
      for_each_relocation(file_, table, [&](const DynamicRelocation& relocation) {
        if (needed || wanted(relocation) || (!relocation.relr && relocation.type == 0)) return;
        const Segment* segment = file_.load_segment(relocation.place);
        needed = segment == nullptr || (segment->flags & PF_W) == 0;
      });
    }
    if (needed) return;
    std::erase_if(entries_, [](const DynamicEntry& entry) { return entry.tag == DT_TEXTREL; });
    for (DynamicEntry& entry : entries_) {
      if (entry.tag == DT_FLAGS) entry.value &= ~DF_TEXTREL;
    }
    result_.textrel = true;
  }

  // The entries in their order from the start, DT_NULL in the places of those that are gone.
  Result<void> write_entries(Plan& plan) {
    const auto old = dynamic_entries(file_);
    const unsigned word = file_.header().word();
    Bytes bytes(old.size() * 2 * word);
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      store_uint(bytes, 2 * word * i, word, file_.header().order, entries_[i].tag);
      store_uint(bytes, 2 * word * i + word, word, file_.header().order, entries_[i].value);
    }
    const auto section = std::ranges::find_if(file_.sections(), [&](const Section& each) {
      return each.type == SHT_DYNAMIC && each.addr == old.front().address &&
             each.size.value >= bytes.size();
    });
    if (section == file_.sections().end()) return refuse_drop("the dynamic section has no header");
    if (std::string why = why_not_own(file_, *section); !why.empty()) {
      return refuse_drop(section->name + ": " + why);
    }
    result_.sections.push_back(section->name);
    return plan.replace(file_.source(), section->offset, std::move(bytes),
                        "the dynamic section says the new sizes");
  }

  const ElfFile& file_;
  const std::set<std::uint64_t>& places_;
  std::vector<DynamicEntry> entries_;
  DroppedRelocations result_;
};

}  // namespace

Result<DroppedRelocations> drop_relocations(Plan& plan, SectionTable& headers, const ElfFile& file,
                                            const std::set<std::uint64_t>& places) {
  return Dropper(file, places).run(plan, headers);
}

}  // namespace reprobe
