#include "libprobe/verify/compare_dynamic.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "libprobe/elf/dynamic_tables.hpp"
#include "libprobe/elf/limits.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

struct Written {
  std::uint64_t place{};
  std::uint32_t type{};
  std::uint32_t symbol{};
  std::optional<std::int64_t> addend;
  bool operator==(const Written&) const = default;
};

bool is_table(const Section& section) {
  return section.allocated() && (section.holds_relocations() || section.type == SHT_RELR);
}

// SHT_RELR as the places it names, one after the other.
std::optional<std::vector<Written>> read_relr(const ElfFile& file, const Section& section) {
  const auto bytes = file.contents(section);
  if (!bytes) return std::nullopt;
  const unsigned word = file.header().word();
  std::vector<Written> places;
  std::uint64_t base = 0;
  for (std::size_t at = 0; at + word <= bytes->size(); at += word) {
    std::uint64_t entry = load_uint(*bytes, at, word, file.header().order);
    if ((entry & 1) == 0) {
      places.push_back({entry, 0, 0, std::nullopt});
      base = entry + word;
      continue;
    }
    std::uint64_t place = base;
    for (entry >>= 1; entry != 0; entry >>= 1, place += word) {
      if ((entry & 1) != 0) places.push_back({place, 0, 0, std::nullopt});
    }
    base += (8 * std::uint64_t{word} - 1) * word;
    if (places.size() > kMaxEntries) return std::nullopt;
  }
  return places;
}

std::optional<std::vector<Written>> read_table(const ElfFile& file, const Section& section) {
  if (section.type == SHT_RELR) return read_relr(file, section);
  const auto relocations = file.relocations(section);
  if (!relocations) return std::nullopt;
  std::vector<Written> result;
  for (const Relocation& entry : *relocations) {
    result.push_back({entry.offset.value, entry.type, entry.symbol, entry.addend});
  }
  return result;
}

class DynamicComparer {
 public:
  DynamicComparer(const ElfFile& before, const ElfFile& after, const std::set<std::uint64_t>& gone)
      : before_(before), after_(after), gone_(gone) {}

  ComparedDynamic run() {
    std::uint64_t budget = before_.source().size();  // tables may overlap in a hostile file
    for (const Section& old : before_.sections()) {
      if (!is_table(old)) continue;
      const Section* now = after_.section_at(old.index);
      if (old.size.value > budget) {  // its bytes are compared with all others
        text_relocations_ = true;
        continue;
      }
      if (now == nullptr || now->type != old.type || now->addr != old.addr ||
          now->size > old.size) {
        differs(old.name + " cannot be compared");
        continue;
      }
      budget -= old.size.value;
      compare_table(old, *now);
    }
    if (result_.findings.empty() && !removed_.empty()) compare_entries();
    return std::move(result_);
  }

 private:
  void differs(std::string message) {
    result_.findings.push_back(verify_finding("verify-relocation", std::move(message)));
  }

  void compare_table(const Section& old, const Section& now) {
    auto left = read_table(before_, old);
    const auto right = read_table(after_, now);
    if (!left && !right) {  // likewise
      text_relocations_ = true;
      return;
    }
    if (!left || !right) return differs(old.name + " cannot be read");
    Table table{old.index, 0, left->size(), {}};
    std::vector<Written> kept;
    for (std::size_t i = 0; i < left->size(); ++i) {
      if (gone_.contains((*left)[i].place)) {
        table.removed.push_back(i);
      } else {
        kept.push_back((*left)[i]);
      }
    }
    if (kept != *right) return differs(old.name + " has other relocations than it had");
    for (const Written& entry : kept) {
      const bool none = old.type != SHT_RELR && entry.type == 0;
      const Segment* segment = before_.load_segment(VirtAddr{entry.place});
      if (!none && (segment == nullptr || (segment->flags & PF_W) == 0)) text_relocations_ = true;
    }
    if (table.removed.empty()) return;
    if (!zeros_behind(old, now)) return differs(old.name + " leaves bytes behind");
    table.size = now.size.value;
    removed_[old.addr.value] = std::move(table);
    result_.bytes.emplace_back(old.offset, old.size);
    result_.sizes.emplace_back(old.index, now.size);
  }

  [[nodiscard]] bool zeros_behind(const Section& old, const Section& now) const {
    if (now.offset != old.offset) return false;
    const auto rest = after_.source().slice(FileOffset{now.offset.value + now.size.value},
                                            Size{old.size.value - now.size.value}, "a table's end");
    return rest && std::ranges::all_of(*rest, [](std::byte b) { return b == std::byte{0}; });
  }

  // The dynamic section is what it was, but for sizes, counts and DT_TEXTREL.
  void compare_entries() {
    const auto segment = std::ranges::find(before_.segments(), PT_DYNAMIC, &Segment::type);
    if (segment == before_.segments().end()) return differs("there is no dynamic section");
    const auto offset = before_.offset_of(segment->vaddr);
    const auto entries = dynamic_entries(before_);
    const Size size{2 * std::uint64_t{before_.header().word()} * entries.size()};
    const ByteView now = after_.bytes_at(segment->vaddr, size);
    if (!offset || now.size() != size.value) return differs("the dynamic section is cut");
    std::vector<std::pair<std::uint64_t, std::uint64_t>> expected;
    for (const DynamicEntry& entry : entries) expected.emplace_back(entry.tag, entry.value);
    follow(expected, entries, DT_RELA, DT_RELASZ, DT_RELACOUNT);
    follow(expected, entries, DT_REL, DT_RELSZ, DT_RELCOUNT);
    follow(expected, entries, DT_RELR, DT_RELRSZ, 0);
    if (followed_ != removed_.size()) return differs("a table is not one of the dynamic section's");
    auto without = expected;
    std::erase_if(without, [](const auto& entry) { return entry.first == DT_TEXTREL; });
    for (auto& [tag, value] : without) {
      if (tag == DT_FLAGS) value &= ~DF_TEXTREL;
    }
    const bool same = equals(now, expected) || (!text_relocations_ && equals(now, without));
    if (!same) return differs("the dynamic section says something else");
    result_.bytes.emplace_back(*offset, size);
  }

  // Sets the size and the count of the table that the tag names.
  void follow(std::vector<std::pair<std::uint64_t, std::uint64_t>>& expected,
              const std::vector<DynamicEntry>& entries, std::uint64_t place, std::uint64_t size,
              std::uint64_t count) {
    const DynamicEntry* table = dynamic_entry(entries, place);
    const auto found = table == nullptr ? removed_.end() : removed_.find(table->value);
    if (found == removed_.end()) return;
    ++followed_;
    const Table& removed = found->second;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const DynamicEntry& entry = entries[i];
      const bool counts = dynamic_entry(entries, entry.tag) == &entry;
      if (!counts) continue;
      if (entry.tag == size) {
        if (entry.value != before_.section_at(removed.section)->size.value) {
          differs("the dynamic section's size of a table is not its section's");
        }
        expected[i].second = removed.size;
      }
      if (count != 0 && entry.tag == count) {
        expected[i].second -= static_cast<std::uint64_t>(std::ranges::count_if(
            removed.removed, [&](std::size_t index) { return index < entry.value; }));
      }
    }
  }

  // The entries, and DT_NULL up to where the old ones ended.
  [[nodiscard]] bool equals(
      ByteView now, const std::vector<std::pair<std::uint64_t, std::uint64_t>>& entries) const {
    const unsigned word = before_.header().word();
    Bytes bytes(now.size());
    for (std::size_t i = 0; i < entries.size(); ++i) {
      store_uint(bytes, 2 * word * i, word, before_.header().order, entries[i].first);
      store_uint(bytes, 2 * word * i + word, word, before_.header().order, entries[i].second);
    }
    return std::ranges::equal(now, bytes);
  }

  struct Table {
    std::uint32_t section{};
    std::uint64_t size{};  // in the result
    std::size_t entries{};
    std::vector<std::size_t> removed;
  };

  const ElfFile& before_;
  const ElfFile& after_;
  const std::set<std::uint64_t>& gone_;
  std::map<std::uint64_t, Table> removed_;  // by address
  std::size_t followed_{};
  bool text_relocations_{};
  ComparedDynamic result_;
};

}  // namespace

ComparedDynamic compare_dynamic(const ElfFile& before, const ElfFile& after,
                                const std::set<std::uint64_t>& gone) {
  return DynamicComparer(before, after, gone).run();
}

}  // namespace reprobe
