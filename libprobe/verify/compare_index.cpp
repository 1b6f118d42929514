#include "libprobe/verify/compare_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>

#include "libprobe/audit/read_probes.hpp"
#include "libprobe/notes/index.hpp"
#include "libprobe/plan/undo.hpp"
#include "libprobe/probes/probe.hpp"
#include "libprobe/verify/byte_ranges.hpp"
#include "libprobe/verify/check_index.hpp"
#include "libprobe/verify/compare_process.hpp"
#include "libprobe/verify/leftovers.hpp"
#include "libprobe/verify/new_memory.hpp"
#include "libprobe/verify/room_headers.hpp"
#include "libprobe/verify/section_match.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

// Of a file made to be slow. Notes and the interpreter's name are what stands behind the program
// headers.
constexpr std::size_t kMostIndexMoved = 8;

class IndexComparer {
 public:
  IndexComparer(const ElfFile& before, const ElfFile& after, const IndexPlace& index)
      : before_(before), after_(after), index_(index) {}

  std::vector<Finding> run() {
    check_contents();
    compare_room_headers(before_, after_, index_, out_);
    compare_sections();
    compare_leftovers(before_, after_, match_sections(before_, after_), out_);
    compare_bytes();
    return std::move(out_);
  }

 private:
  void report(std::string rule, std::string message) {
    out_.push_back(verify_finding(std::move(rule), std::move(message)));
  }

  void check_contents() {
    check_index(before_, after_, read_probes(after_), out_);
    const auto index = read_index(after_, index_);
    if (index && index->entries.empty()) report("verify-index", "the index is empty");
  }

  // --- section headers ---

  void compare_sections() {
    const auto old = before_.sections();
    const auto now = after_.sections();
    if (now.size() != old.size() + 1 || !is_index_section(now.back())) {
      return report("verify-section", "the index has no section of its own");
    }
    for (const Section& section : old) {
      if (!is_same_section(section, now[section.index])) {
        report("verify-section", fmt::format("section {} {} changed", section.index, section.name));
      }
    }
    // The header 0 belongs to no section.
    const Size size{before_.header().shentsize};
    const auto first = before_.source().slice(before_.header().shoff, size, "section header 0");
    const auto same = after_.source().slice(after_.header().shoff, size, "section header 0");
    if (!first || !same || !std::ranges::equal(*first, *same)) {
      report("verify-section", "section header 0 changed");
    }
    if (before_.header().shstrndx != after_.header().shstrndx) {
      report("verify-section", "the section names are another section");
    }
  }

  bool is_index_section(const Section& s) const {
    return s.name == kIndexSection && s.type == SHT_NOTE && s.flags == SHF_ALLOC &&
           s.addr == index_.address && s.offset == index_.offset && s.size == index_.size &&
           s.link == 0 && s.info == 0 && s.addralign == Size{4} && s.entsize == Size{0};
  }

  bool is_same_section(const Section& old, const Section& now) {
    if (old.name != now.name || old.type != now.type || old.flags != now.flags ||
        old.link != now.link || old.info != now.info || old.addralign != now.addralign ||
        old.entsize != now.entsize) {
      return false;
    }
    if (old.index != 0 && old.index == before_.header().shstrndx) return has_new_name(old, now);
    if (old.name == kUndoSection && old.addr == now.addr && old.offset != now.offset)
      return gives_the_same();
    if (old.size != now.size) return false;
    if (old.addr == now.addr && old.offset == now.offset) return true;
    // It made place for program headers.
    const bool moved =
        old.flags == SHF_ALLOC && !old.nobits() && now.offset.value >= before_.source().size() &&
        same_text(old.offset, now.offset, old.size) && after_.offset_of(now.addr) == now.offset;
    if (!moved || moved_.size() == kMostIndexMoved) return false;
    moved_.insert(old.index);
    return true;
  }

  // The record of the sleds has grown by what the index replaced.
  [[nodiscard]] bool gives_the_same() const {
    const auto old = plan_undo(before_);
    const auto now = plan_undo(after_);
    if (!old || !now) return false;
    const auto a = apply(*old, before_.source());
    const auto b = apply(*now, after_.source());
    return a && b && *a == *b;
  }

  bool has_new_name(const Section& old, const Section& now) const {
    const auto a = before_.contents(old);
    const auto b = after_.contents(now);
    const std::string added = std::string(kIndexSection) + '\0';
    return a && b && old.addr == now.addr && b->size() == a->size() + added.size() &&
           std::ranges::equal(*a, b->first(a->size())) && as_text(b->subspan(a->size())) == added;
  }

  // --- bytes ---

  [[nodiscard]] bool same_text(FileOffset old, FileOffset now, Size size) const {
    const auto a = before_.source().slice(old, size, "bytes");
    const auto b = after_.source().slice(now, size, "bytes");
    return a && b && std::ranges::equal(*a, *b);
  }

  void compare_bytes() {
    allow_headers();
    for (const std::uint32_t index : moved_) allow_symbols_of(*before_.section_at(index));
    std::ranges::sort(allowed_, {}, &Range::begin);
    if (const auto found = first_difference(before_, after_, allowed_)) {
      out_.push_back(difference_finding(*found, "none that an index needs",
                                        "the result is shorter than the original"));
    }
  }

  // e_phoff, e_phnum, e_shoff and e_shnum; the table, and what it grew over.
  void allow_headers() {
    const bool is64 = before_.header().is64;
    const auto allow = [&](std::uint64_t begin, std::uint64_t size) {
      allowed_.push_back({begin, begin + size});
    };
    allow(is64 ? 32 : 28, is64 ? 16 : 8);  // e_phoff and e_shoff stand together
    allow(is64 ? 56 : 44, 2);
    allow(is64 ? 60 : 48, 2);
    ProcessClaims claims{.bytes = {}, .room = true, .relocated = false};
    // A table that moved leaves the old one as it was.
    if (const auto table = table_in_place(before_, after_, out_)) {
      allowed_.push_back(*table);
      claims.bytes.push_back(*table);
    }
    for (const Range& grown : grown_ranges(before_, after_, out_)) allowed_.push_back(grown);
    compare_process(before_, after_, std::move(claims), out_);
    compare_new_memory(before_, after_,
                       {{index_.offset.value, index_.offset.value + index_.size.value}}, out_);
  }

  // Symbols follow their section. (One at its end may be the next thing's.)
  void allow_symbols_of(const Section& moved) {
    const std::uint64_t by = after_.section_at(moved.index)->addr.value - moved.addr.value;
    const unsigned word = before_.header().word();
    std::uint64_t budget = before_.source().size();  // tables may overlap in a hostile file
    for (const Section& section : before_.sections()) {
      if (section.type != SHT_SYMTAB || section.size.value > budget) continue;
      budget -= section.size.value;
      const auto old = before_.symbol_table(section);
      if (!old) continue;
      const auto now = after_.symbol_table(*after_.section_at(section.index));
      if (!now || now->size() != old->size()) continue;
      for (std::uint32_t i = 0; i < old->size(); ++i) {
        const Symbol symbol = old->at(i);
        if (symbol.shndx != moved.index || !symbol.in_section()) continue;
        if (now->at(i).value.value != symbol.value.value + by) {
          const bool inside = symbol.type != STT_TLS &&
                              in_range(symbol.value.value, moved.addr.value, moved.size.value);
          if (!inside) continue;
          return report("verify-section",
                        fmt::format("symbol {} does not follow section {}", i, moved.name));
        }
        // st_value in Elf32_Sym and Elf64_Sym.
        const std::uint64_t at = section.offset.value + symbol.entry_offset + (word == 8 ? 8U : 4U);
        allowed_.push_back({at, at + word});
      }
    }
  }

  const ElfFile& before_;
  const ElfFile& after_;
  IndexPlace index_;
  std::set<std::uint32_t> moved_;  // sections that made place for program headers
  std::vector<Range> allowed_;
  std::vector<Finding> out_;
};

}  // namespace

bool gained_index(const ElfFile& before, const ElfFile& after) {
  return !find_index(before) && find_index(after);
}

std::vector<Finding> compare_index(const ElfFile& before, const ElfFile& after) {
  const auto index = find_index(after);
  if (!index) return {verify_finding("verify-index", "the result has no index")};
  return IndexComparer(before, after, *index).run();
}

}  // namespace reprobe
