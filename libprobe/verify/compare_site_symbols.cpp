#include "libprobe/verify/compare_site_symbols.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "libprobe/audit/read_probes.hpp"
#include "libprobe/elf/site_group.hpp"
#include "libprobe/plan/undo.hpp"
#include "libprobe/probes/site_symbols.hpp"
#include "libprobe/verify/byte_ranges.hpp"
#include "libprobe/verify/compare_process.hpp"
#include "libprobe/verify/leftovers.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

class SiteSymbolsComparer {
 public:
  SiteSymbolsComparer(const ElfFile& before, const ElfFile& after)
      : before_(before), after_(after) {}

  std::vector<Finding> run() {
    const auto original = without_site_symbols(after_);
    if (!original || !same_files(before_, *original)) {
      differs("verify-undo", "the record does not give the file without the symbols back");
    }
    compare_bytes();
    compare_process(before_, after_, {}, out_);
    if (compare_headers()) compare_table();
    compare_names();
    compare_appended(before_, after_, out_);
    return std::move(out_);
  }

 private:
  void differs(const char* rule, std::string message) {
    out_.push_back(verify_finding(rule, std::move(message)));
  }

  // All old bytes but where the section headers are, and how many.
  void compare_bytes() {
    const bool is64 = before_.header().is64;
    const std::array<Range, 2> fields = is64 ? std::array<Range, 2>{{{40, 48}, {60, 62}}}
                                             : std::array<Range, 2>{{{32, 36}, {48, 50}}};
    if (const auto found = first_difference(before_, after_, fields)) {
      out_.push_back(difference_finding(*found, "no field that tells where the headers are",
                                        "the result is shorter than the original"));
    }
  }

  [[nodiscard]] bool behind_old_file(const Section& section) const {
    const auto end = checked_add(section.offset.value, section.size.value);
    return section.in_file && section.offset.value >= before_.source().size() && end &&
           *end <= after_.source().size();
  }

  // The bytes of a header but for those fields that may differ where the contents stand elsewhere.
  [[nodiscard]] bool same_header(const Section& a, const Section& b, bool contents,
                                 bool info) const {
    const bool is64 = before_.header().is64;
    const Size size{before_.header().shentsize};
    const auto x = before_.source().slice(a.header_offset, size, "a section header");
    const auto y = after_.source().slice(b.header_offset, size, "a section header");
    if (!x || !y) return false;
    const Range moved = is64 ? Range{24, 40} : Range{16, 24};  // sh_offset, sh_size
    const Range count = is64 ? Range{44, 48} : Range{28, 32};  // sh_info
    for (std::size_t i = 0; i < x->size(); ++i) {
      const bool may = (contents && i >= moved.begin && i < moved.end) ||
                       (info && i >= count.begin && i < count.end);
      if (!may && (*x)[i] != (*y)[i]) return false;
    }
    return true;
  }

  // Every old section in its place, and two or three new ones behind them.
  bool compare_headers() {
    const auto old = before_.sections();
    const auto now = after_.sections();
    const Section* record = after_.section(kSitesNamed);
    if (now.size() <= old.size() || record == nullptr || record->index + 1 != now.size() ||
        after_.header().shstrndx != before_.header().shstrndx ||
        !is_new_section(*record, SHT_PROGBITS, 1)) {
      differs("verify-section", "the result has other sections than the record needs");
      return false;
    }
    find_tables(old);
    for (const Section& section : old) {
      const Section& other = now[section.index];
      const bool grown = section.index != 0 && (section.index == before_.header().shstrndx ||
                                                section.index == table_ || section.index == names_);
      if (!same_header(section, other, grown, grown && section.index == table_) ||
          (grown && !behind_old_file(other))) {
        differs("verify-section",
                fmt::format("section {} {} changed", section.index, section.name));
        return false;
      }
    }
    const std::size_t added = now.size() - old.size();
    if (table_ != 0 ? added == 1 : added == 3 && has_new_tables(old.size())) return true;
    differs("verify-section", "the result has sections that nothing needs");
    return false;
  }

  // The old table and its names, where there is one.
  void find_tables(std::span<const Section> old) {
    const auto table = std::ranges::find(old, SHT_SYMTAB, &Section::type);
    if (table == old.end()) return;
    table_ = table->index;
    names_ = table->link;
  }

  [[nodiscard]] bool is_new_section(const Section& section, std::uint32_t type,
                                    std::uint64_t align) const {
    return section.type == type && section.flags == 0 && section.addr.value == 0 &&
           section.addralign.value == align && behind_old_file(section) &&
           (type == SHT_SYMTAB ||
            (section.link == 0 && section.info == 0 && section.entsize.value == 0));
  }

  bool has_new_tables(std::size_t first) {
    const Section& names = after_.sections()[first];
    const Section& table = after_.sections()[first + 1];
    const std::uint64_t entry = before_.header().is64 ? 24 : 16;
    return is_new_section(names, SHT_STRTAB, 1) && names.name == ".strtab" &&
           is_new_section(table, SHT_SYMTAB, before_.header().word()) && table.name == ".symtab" &&
           table.link == names.index && table.entsize.value == entry;
  }

  // The old entries, with the group behind the local ones; the old names, with the group's.
  void compare_table() {
    const Section& now = *after_.section_at(
        table_ != 0 ? table_ : static_cast<std::uint32_t>(before_.sections().size() + 1));
    const Section* old = table_ != 0 ? before_.section_at(table_) : nullptr;
    const auto table = after_.symbol_table(now);
    const auto entries = after_.contents(now);
    const auto names = after_.contents(*after_.section_at(now.link));
    const auto old_entries =
        old != nullptr ? before_.contents(*old) : Result<ByteView>(no_entries());
    const auto old_names = old != nullptr ? before_.contents(*before_.section_at(old->link))
                                          : Result<ByteView>(ByteView(kNull).first(1));
    if (!table || !entries || !names || !old_entries || !old_names) {
      return differs("verify-section", "the symbols cannot be read");
    }
    const std::uint64_t entry = now.entsize.value;
    const std::uint32_t locals = old != nullptr ? old->info : 1;
    const auto expected = site_symbols(before_, read_probes(before_)).symbols;
    const std::size_t count = expected.size() + 1;
    const auto head = static_cast<std::size_t>(locals * entry);
    const auto added = static_cast<std::size_t>(count * entry);
    if (expected.empty() || now.info != locals + count || head > old_entries->size() ||
        entries->size() != old_entries->size() + added ||
        !std::ranges::equal(entries->first(head), old_entries->first(head)) ||
        !std::ranges::equal(entries->subspan(head + added), old_entries->subspan(head))) {
      return differs("verify-section", "the symbols are not the old ones and one for each site");
    }
    Bytes wanted(old_names->begin(), old_names->end());
    if (wanted.empty() || wanted.back() != std::byte{0}) {
      return differs("verify-section", "the old names of the symbols do not end");
    }
    for (std::size_t i = 0; i < count; ++i) {
      const SiteSymbol site =
          i == 0 ? SiteSymbol{std::string(kSiteGroup), {}, {}, SHN_ABS} : expected[i - 1];
      const Symbol symbol = table->at(locals + static_cast<std::uint32_t>(i));
      if (symbol.type != (i == 0 ? STT_FILE : STT_FUNC) || symbol.binding != STB_LOCAL ||
          symbol.other != 0 || symbol.shndx != site.section || symbol.value != site.value ||
          symbol.size != site.size || symbol.name_offset != wanted.size()) {
        return differs("verify-section", fmt::format("symbol {} is not that of the site {}",
                                                     symbol.index, site.name));
      }
      const ByteView text = as_bytes(site.name);
      wanted.insert(wanted.end(), text.begin(), text.end());
      wanted.push_back(std::byte{0});
    }
    if (!std::ranges::equal(wanted, *names)) {
      differs("verify-section", "the names of the symbols are not the old ones and the sites'");
    }
  }

  // The names of sections: the old ones, and behind them those of the new sections.
  void compare_names() {
    const auto index = static_cast<std::uint32_t>(before_.header().shstrndx);
    const Section* old = before_.section_at(index);
    const Section* now = after_.section_at(index);
    const auto a = old != nullptr ? before_.contents(*old) : Result<ByteView>(ByteView{});
    const auto b = now != nullptr ? after_.contents(*now) : Result<ByteView>(ByteView{});
    if (!a || !b) return differs("verify-section", "the names of the sections cannot be read");
    Bytes wanted(a->begin(), a->end());
    bool right = true;
    for (std::size_t i = before_.sections().size(); i < after_.sections().size(); ++i) {
      const Section& section = after_.sections()[i];
      const auto name_at = after_.source().slice(section.header_offset, Size{4}, "sh_name");
      right = right && name_at && load_uint(*name_at, 0, 4, after_.header().order) == wanted.size();
      const ByteView text = as_bytes(section.name);
      wanted.insert(wanted.end(), text.begin(), text.end());
      wanted.push_back(std::byte{0});
    }
    if (!right || !std::ranges::equal(wanted, *b)) {
      differs("verify-section", "the names of the sections are not the old ones and the new ones'");
    }
  }

  [[nodiscard]] ByteView no_entries() const {
    return ByteView(kNull).first(before_.header().is64 ? 24 : 16);
  }

  static constexpr std::array<std::byte, 24> kNull{};  // the null symbol
  const ElfFile& before_;
  const ElfFile& after_;
  std::uint32_t table_{};  // index of the old .symtab and of its names; 0: there is none
  std::uint32_t names_{};
  std::vector<Finding> out_;
};

}  // namespace

Result<ElfFile> without_site_symbols(const ElfFile& after) {
  const auto plan = plan_undo(after, kSitesNamed);
  if (!plan) return tl::unexpected(plan.error());
  auto bytes = apply(*plan, after.source());
  if (!bytes) return tl::unexpected(bytes.error());
  return ElfFile::open(memory_source(std::move(*bytes)));
}

std::vector<Finding> compare_site_symbols(const ElfFile& before, const ElfFile& after) {
  return SiteSymbolsComparer(before, after).run();
}

}  // namespace reprobe
