#include "libprobe/rewrite/site_symbols.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "libprobe/elf/site_group.hpp"
#include "libprobe/plan/undo.hpp"
#include "libprobe/rewrite/growing_symbols.hpp"
#include "libprobe/rewrite/section_table.hpp"

namespace reprobe {
namespace {

// Elf32_Sym and Elf64_Sym: System V ABI chapter 4, "Symbol Table".
struct SymbolLayout {
  std::size_t entry, info, shndx, value, size;
  unsigned word;
};
constexpr SymbolLayout kSymbol64{24, 4, 6, 8, 16, 8};
constexpr SymbolLayout kSymbol32{16, 12, 14, 4, 8, 4};

constexpr const char* kWhySymbols = "the symbols with those of the probes' sites";
constexpr const char* kWhyNames = "the names of the symbols with those of the probes' sites";

// The group's entries, and their names behind the ones that are there.
struct GroupBytes {
  Bytes entries;
  Bytes names;
  std::uint32_t count{};

  Result<void> add(const ElfHeader& header, std::uint8_t type, const SiteSymbol& symbol) {
    const SymbolLayout& layout = header.is64 ? kSymbol64 : kSymbol32;
    const std::size_t at = entries.size();
    entries.resize(at + layout.entry);
    const auto put = [&](std::size_t field, unsigned width, std::uint64_t number) {
      if (width < 8 && number >> (8 * width) != 0) return false;
      store_uint(entries, at + field, width, header.order, number);
      return true;
    };
    if (!put(0, 4, names.size()) || !put(layout.info, 1, (STB_LOCAL << 4) | type) ||
        !put(layout.shndx, 2, symbol.section) ||
        !put(layout.value, layout.word, symbol.value.value) ||
        !put(layout.size, layout.word, symbol.size.value)) {
      return fail(ErrorCode::internal, ".symtab", "a number does not fit the symbol");
    }
    const ByteView text = as_bytes(symbol.name);
    names.insert(names.end(), text.begin(), text.end());
    names.push_back(std::byte{0});
    ++count;
    return {};
  }
};

Result<GroupBytes> make_group(const ElfHeader& header, Bytes names,
                              const std::vector<SiteSymbol>& symbols) {
  GroupBytes group{{}, std::move(names)};
  auto done = group.add(header, STT_FILE, {std::string(kSiteGroup), VirtAddr{}, Size{}, SHN_ABS});
  for (const SiteSymbol& symbol : symbols) {
    if (!done) return tl::unexpected(done.error());
    done = group.add(header, STT_FUNC, symbol);
  }
  if (!done) return tl::unexpected(done.error());
  return group;
}

// The tables that grow, as copies at the end of the file.
Result<void> write_grown(Plan& plan, SectionTable& headers, const ElfFile& file,
                         const GrowingSymbols& growing, const std::vector<SiteSymbol>& symbols) {
  const auto table = file.contents(*growing.table);
  if (!table) return tl::unexpected(table.error());
  const auto names = file.contents(*growing.names);
  if (!names) return tl::unexpected(names.error());
  if (names->empty() || names->back() != std::byte{0}) {
    return fail(ErrorCode::refused, growing.names->name, "the names of the symbols do not end");
  }
  auto group = make_group(file.header(), Bytes(names->begin(), names->end()), symbols);
  if (!group) return tl::unexpected(group.error());
  Bytes entries(table->begin(), table->end());
  const auto globals =
      static_cast<std::ptrdiff_t>(growing.table->info * growing.table->entsize.value);
  entries.insert(entries.begin() + globals, group->entries.begin(), group->entries.end());
  const Size size{entries.size()}, names_size{group->names.size()};
  const auto at =
      plan.append(file.source(), std::move(entries), Size{file.header().word()}, kWhySymbols);
  if (!at) return tl::unexpected(at.error());
  const auto names_at = plan.append(file.source(), std::move(group->names), Size{1}, kWhyNames);
  if (!names_at) return tl::unexpected(names_at.error());
  for (auto done : {headers.set(*growing.table, SectionField::offset, at->value, kWhySymbols),
                    headers.set(*growing.table, SectionField::size, size.value, kWhySymbols),
                    headers.set(*growing.table, SectionField::info,
                                growing.table->info + group->count, kWhySymbols),
                    headers.set(*growing.names, SectionField::offset, names_at->value, kWhyNames),
                    headers.set(*growing.names, SectionField::size, names_size.value, kWhyNames)}) {
    if (!done) return done;
  }
  return {};
}

// A table of these symbols alone.
Result<void> write_new(Plan& plan, SectionTable& headers, const ElfFile& file,
                       const std::vector<SiteSymbol>& symbols) {
  auto group = make_group(file.header(), Bytes(1), symbols);
  if (!group) return tl::unexpected(group.error());
  const std::size_t entry = file.header().is64 ? kSymbol64.entry : kSymbol32.entry;
  Bytes entries(entry);  // the null symbol
  entries.insert(entries.end(), group->entries.begin(), group->entries.end());
  Section names;
  names.name = ".strtab";
  names.type = SHT_STRTAB;
  names.addralign = Size{1};
  const auto link =
      headers.append(plan, std::move(names), std::move(group->names), kWhyNames, kWhyNames);
  if (!link) return tl::unexpected(link.error());
  Section table;
  table.name = ".symtab";
  table.type = SHT_SYMTAB;
  table.addralign = Size{file.header().word()};
  table.entsize = Size{entry};
  table.link = *link;
  table.info = group->count + 1;
  const auto added =
      headers.append(plan, std::move(table), std::move(entries), kWhySymbols, kWhySymbols);
  if (!added) return tl::unexpected(added.error());
  return {};
}

bool defines_symbols(const ElfFile& file, const Section& section) {
  const auto table = file.symbol_table(section);
  if (!table) return true;
  for (std::uint32_t i = 1; i < table->size(); ++i) {
    const Symbol symbol = table->at(i);
    if (symbol.in_section() && (symbol.type == STT_FUNC || symbol.type == STT_GNU_IFUNC))
      return true;
  }
  return false;
}

// Why a table of the sites alone would hide other symbols, or "".
std::string why_no_new_table(const ElfFile& file) {
  for (const Section& section : file.sections()) {
    if (section.type == SHT_SYMTAB) return "its .symtab cannot grow";
    if (section.type == SHT_DYNSYM && defines_symbols(file, section)) {
      return "it has no .symtab, and a new one would hide its exported functions from tools that "
             "read .dynsym only where there is none";
    }
    if (section.name == ".gnu_debuglink" || section.name == ".gnu_debugdata") {
      return "it has no .symtab, and a new one would hide the symbols that " + section.name +
             " leads to";
    }
  }
  return "";
}

const Section* table_with_group(const ElfFile& file) {
  for (const Section& section : file.sections()) {
    if (section.type != SHT_SYMTAB) continue;
    const auto table = file.symbol_table(section);
    if (table && !site_group(*table).empty()) return &section;
  }
  return nullptr;
}

// Are the group's symbols those that are wanted?
bool has_group_of(const SymbolTable& table, const std::vector<SiteSymbol>& symbols) {
  const SymbolGroup group = site_group(table);
  if (group.end - group.begin != symbols.size() + 1) return false;
  for (std::size_t i = 0; i < symbols.size(); ++i) {
    const Symbol found = table.at(group.begin + 1 + static_cast<std::uint32_t>(i));
    if (found.value != symbols[i].value || found.size != symbols[i].size ||
        found.type != STT_FUNC || found.shndx != symbols[i].section ||
        table.name(found) != symbols[i].name) {
      return false;
    }
  }
  return true;
}

Result<void> write_symbols(Plan& plan, const ElfFile& file,
                           const std::optional<GrowingSymbols>& growing,
                           const std::vector<SiteSymbol>& symbols) {
  auto headers = SectionTable::of(file);
  if (!headers) return tl::unexpected(headers.error());
  auto done = growing ? write_grown(plan, *headers, file, *growing, symbols)
                      : write_new(plan, *headers, file, symbols);
  if (!done) return done;
  auto undo = make_undo(plan, file.source());
  if (!undo) return tl::unexpected(undo.error());
  Section record;
  record.name = std::string(kSitesNamed);
  record.type = SHT_PROGBITS;
  record.addralign = Size{1};
  const auto added = headers->append(plan, std::move(record), std::move(*undo),
                                     "the record that gives the file without these symbols back",
                                     "the sections of the symbols");
  if (!added) return tl::unexpected(added.error());
  return headers->write(plan);
}

}  // namespace

bool names_sites(const ElfFile& file) { return table_with_group(file) != nullptr; }

Result<SiteSymbolsPlan> plan_site_symbols(const ElfFile& file, const ProbeFile& probes) {
  SiteSymbolsPlan result;
  result.sites = site_symbols(file, probes);
  if (const Section* section = table_with_group(file)) {
    const auto table = file.symbol_table(*section);
    result.already = table && has_group_of(*table, result.sites.symbols);
    if (!result.already) {
      result.refused = "its symbols name other sites than its notes; --undo-symbols comes first";
    }
    return result;
  }
  if (result.sites.symbols.empty()) return result;
  if (file.section(kSitesNamed) != nullptr) {
    result.refused =
        "it has a record of symbols that a strip deleted, which objcopy "
        "--remove-section=.reprobe.undo.symbols takes out";
    return result;
  }
  const auto growing = growing_symbols(file);
  if (!growing) result.refused = why_no_new_table(file);
  if (!result.refused.empty()) return result;
  auto done = write_symbols(result.plan, file, growing, result.sites.symbols);
  if (!done) return tl::unexpected(done.error());
  return result;
}

}  // namespace reprobe
