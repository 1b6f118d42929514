#include "lief_facts.hpp"

#include <LIEF/ELF.hpp>
#include <memory>

namespace reprobe::oracle {
namespace {

// Current releases put bits of their own above the 32 of p_type, sh_type and p_flags.
template <typename E>
std::uint64_t low32(E value) {
  return static_cast<std::uint64_t>(value) & 0xffffffff;
}

void add_symbol(Lines& lines, std::string_view table, std::size_t index,
                const LIEF::ELF::Symbol& s) {
  lines.push_back(SymbolFact{table, index, s.name(), s.value(), s.size(),
                             static_cast<std::uint64_t>(s.type()),
                             static_cast<std::uint64_t>(s.binding()), s.shndx()}
                      .line());
}

template <typename Binary>
void add_symtab(Lines& lines, Binary& binary) {
  std::size_t index = 0;
  // Current releases renamed static_symbols().
  if constexpr (requires { binary.symtab_symbols(); })
    for (const auto& s : binary.symtab_symbols()) add_symbol(lines, ".symtab", index++, s);
  else
    for (const auto& s : binary.static_symbols()) add_symbol(lines, ".symtab", index++, s);
}

// 0.9 counts the dynamic symbols by hash table or relocations where it finds the section's count
// too large, and so drops 4,571 of the 5,366 that readelf shows in Debian's /usr/bin/lld-19. We
// compare the section, so the section's size is what counts.
std::unique_ptr<LIEF::ELF::Binary> parse(const std::string& path) {
#if __has_include(<LIEF/ELF/ParserConfig.hpp>)
  LIEF::ELF::ParserConfig config;
  config.count_mtd = LIEF::ELF::ParserConfig::DYNSYM_COUNT::SECTION;
  return LIEF::ELF::Parser::parse(path, config);
#else
  return LIEF::ELF::Parser::parse(path, LIEF::ELF::DYNSYM_COUNT_METHODS::COUNT_SECTION);
#endif
}

}  // namespace

std::optional<Lines> lief_facts(const std::string& path) {
  const std::unique_ptr<LIEF::ELF::Binary> binary = parse(path);
  if (!binary) return std::nullopt;
  Lines lines;
  std::size_t index = 0;
  for (const LIEF::ELF::Segment& s : binary->segments())
    lines.push_back(SegmentFact{index++, low32(s.type()), low32(s.flags()), s.file_offset(),
                                s.virtual_address(), s.physical_address(), s.physical_size(),
                                s.virtual_size(), s.alignment()}
                        .line());
  index = 0;
  for (const LIEF::ELF::Section& s : binary->sections())
    lines.push_back(SectionFact{index++, s.name(), low32(s.type()),
                                static_cast<std::uint64_t>(s.flags()), s.virtual_address(),
                                s.offset(), s.size(), s.link(), s.information(), s.alignment(),
                                s.entry_size()}
                        .line());
  add_symtab(lines, *binary);
  index = 0;
  for (const LIEF::ELF::Symbol& s : binary->dynamic_symbols())
    add_symbol(lines, ".dynsym", index++, s);
  return lines;
}

}  // namespace reprobe::oracle
