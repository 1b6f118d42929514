#include "libprobe/verify/compare_stub_symbols.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "libprobe/notes/stapsdt.hpp"
#include "libprobe/plan/undo.hpp"
#include "libprobe/verify/verify_finding.hpp"
#include "libprobe/verify/x86_reading.hpp"

namespace reprobe {
namespace {

// What it was, and at its section's new place where that has moved.
bool same_symbol(const ElfFile& before, const ElfFile& after, const Symbol& x, const Symbol& y) {
  if (x.name_offset != y.name_offset || x.type != y.type || x.binding != y.binding ||
      x.other != y.other || x.shndx != y.shndx || x.reserved_shndx != y.reserved_shndx) {
    return false;
  }
  const Section* from = x.in_section() ? before.section_at(x.shndx) : nullptr;
  const Section* to = x.in_section() ? after.section_at(x.shndx) : nullptr;
  // Linkers give symbols outside of any section, __ehdr_start, some section's number.
  const bool inside = from != nullptr && to != nullptr && x.value >= from->addr &&
                      x.value.value - from->addr.value <= from->size.value;
  const std::uint64_t moved_by = inside ? to->addr.value - from->addr.value : 0;
  // The base's becomes as empty as the base.
  const bool emptied = inside && y.size.value == 0 && to->size.value == 0;
  return y.value.value - x.value.value == moved_by && (x.size == y.size || emptied);
}

// A table that was copied to the end of the file.
class MovedTable {
 public:
  MovedTable(const ElfFile& before, const ElfFile& after, const Section& old, const Section& now,
             const PassedInStubs& passed)
      : before_(before), after_(after), old_(old), now_(now), passed_(passed) {}

  // What is wrong, or "".
  std::string check() {
    const auto a = before_.symbol_table(old_);
    const auto b = after_.symbol_table(now_);
    if (!a || !b || b->size() <= a->size()) return "cannot be read, or have not grown";
    added_ = b->size() - a->size();
    if (now_.type != SHT_SYMTAB || now_.link != old_.link || now_.flags != old_.flags ||
        now_.size.value != old_.size.value + added_ * old_.entsize.value ||
        now_.info != old_.info + added_ || old_.info > a->size()) {
      return "have a header that does not fit them";
    }
    for (std::uint32_t i = 0; i < a->size(); ++i) {
      const std::uint32_t at = i < old_.info ? i : i + added_;
      if (!same_symbol(before_, after_, a->at(i), b->at(at))) {
        return fmt::format("lack symbol {} of the original", i);
      }
    }
    VirtAddr last{};
    for (std::uint32_t i = 0; i < added_; ++i) {
      const Symbol symbol = b->at(old_.info + i);
      if (symbol.value < std::exchange(last, symbol.value)) return "are in no order";
      if (!names_a_stub(symbol, b->name(symbol))) {
        return fmt::format("have symbol {}, which names no stub", old_.info + i);
      }
    }
    if (!all_named()) return "do not name every stub";
    if (!old_place_follows()) return "were something else where they stood";
    return names_grew() ? "" : "have other names than the original's and the stubs'";
  }

 private:
  // A local function in the section of the stubs, apart from the others, over code that execution
  // in the function passes, from its first byte to its last.
  bool names_a_stub(const Symbol& symbol, std::string_view name) {
    const Section* section = symbol.in_section() ? after_.section_at(symbol.shndx) : nullptr;
    if (section == nullptr || section->name != kSledSection || symbol.type != STT_FUNC ||
        symbol.binding != STB_LOCAL || symbol.other != 0 || symbol.size.value == 0 ||
        !name.ends_with(kStubSuffix)) {
      return false;
    }
    const auto end = checked_add(symbol.value.value, symbol.size.value);
    if (!end || symbol.value < section->addr || *end > section->addr.value + section->size.value) {
      return false;
    }
    if (!is_old_or_next_name(symbol, name)) return false;
    name.remove_suffix(kStubSuffix.size());
    const auto first = passed_.find(symbol.value);
    if (first == passed_.end()) return false;
    VirtAddr last{};
    for (auto at = first; at != passed_.end() && at->first.value < *end; ++at) {
      if (!at->second.contains(name) || !named_.insert(at->first).second) return false;
      last = at->first;
    }
    const auto code = read_x86(after_, last);
    return code && code->end().value == *end;
  }

  // Each name stands once behind the original's, in the order in which symbols first have it.
  bool is_old_or_next_name(const Symbol& symbol, std::string_view name) {
    const auto [known, is_new] = names_.emplace(name, symbol.name_offset);
    if (!is_new) return known->second == symbol.name_offset;
    const Section* old = before_.section_at(old_.link);
    if (old == nullptr || symbol.name_offset != old->size.value + new_names_) return false;
    new_names_ += name.size() + 1;
    return true;
  }

  [[nodiscard]] bool all_named() const {
    return std::ranges::all_of(passed_, [&](const auto& at) {
      return at.second.contains("") || named_.contains(at.first);
    });
  }

  // The old table is left behind, and says what the copy says.
  [[nodiscard]] bool old_place_follows() const {
    const auto left = after_.source().slice(old_.offset, old_.size, "the old symbols");
    const auto copy = after_.contents(now_);
    const std::uint64_t globals = old_.info * old_.entsize.value;
    const std::uint64_t added = added_ * old_.entsize.value;
    if (!left || !copy || now_.entsize != old_.entsize || globals > left->size() ||
        copy->size() < left->size() + added) {
      return false;
    }
    const auto at = static_cast<std::size_t>(globals);
    return std::ranges::equal(left->first(at), copy->first(at)) &&
           std::ranges::equal(left->subspan(at), copy->subspan(at + static_cast<std::size_t>(added),
                                                               left->size() - at));
  }

  // The old names where they were, and each new one once behind them.
  [[nodiscard]] bool names_grew() const {
    const Section* old = before_.section_at(old_.link);
    const Section* now = after_.section_at(now_.link);
    if (old == nullptr || now == nullptr || now->type != SHT_STRTAB) return false;
    const auto a = before_.contents(*old);
    const auto b = after_.contents(*now);
    if (!a || !b || b->size() < a->size() || !std::ranges::equal(*a, b->first(a->size()))) {
      return false;
    }
    return a->size() + new_names_ == b->size();
  }

  const ElfFile& before_;
  const ElfFile& after_;
  const Section& old_;
  const Section& now_;
  const PassedInStubs& passed_;
  std::uint32_t added_{};
  std::set<VirtAddr> named_;                         // addresses of passed_ that a symbol covers
  std::map<std::string_view, std::uint64_t> names_;  // of stubs, where they stand
  std::uint64_t new_names_{};                        // bytes of them
};

}  // namespace

bool same_symbols(const ElfFile& before, const ElfFile& after, const Section& old) {
  const Section* now = after.section_at(old.index);
  if (now == nullptr) return false;
  const auto a = before.symbol_table(old);
  const auto b = after.symbol_table(*now);
  if (!a || !b || a->size() != b->size()) return false;
  for (std::uint32_t i = 0; i < a->size(); ++i) {
    if (!same_symbol(before, after, a->at(i), b->at(i))) return false;
  }
  return true;
}

void compare_stub_symbols(const ElfFile& before, const ElfFile& after, const PassedInStubs& passed,
                          std::vector<Finding>& out) {
  for (const Section& old : before.sections()) {
    const Section* now = after.section_at(old.index);
    if (old.type != SHT_SYMTAB || (now != nullptr && now->offset == old.offset)) continue;
    const std::string why =
        now == nullptr ? "are gone" : MovedTable(before, after, old, *now, passed).check();
    if (!why.empty()) {
      out.push_back(
          verify_finding("verify-section", fmt::format("the symbols of {} {}", old.name, why)));
    }
  }
}

}  // namespace reprobe
