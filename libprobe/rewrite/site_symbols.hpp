// `reprobe fix --symbols`: symbols at the sites of probes (probes/site_symbols.hpp), for debuggers
// and tracers that know no USDT. They stand behind the other local symbols in a copy of .symtab,
// and a record gives the file without them back.
#pragma once

#include <string>

#include "libprobe/elf/file.hpp"
#include "libprobe/plan/plan.hpp"
#include "libprobe/probes/probe.hpp"
#include "libprobe/probes/site_symbols.hpp"

namespace reprobe {

struct SiteSymbolsPlan {
  Plan plan;            // empty: nothing to do, or refused
  SiteSymbols sites;    // what gets a symbol and what does not
  bool already{};       // the file has exactly these symbols
  std::string refused;  // why none is written, in stable words; "": they are, or are there
};

// Does a symbol table of the file have such symbols?
[[nodiscard]] bool names_sites(const ElfFile& file);

// A file without .symtab gets one where no tool then misses other symbols: those of .dynsym, of a
// separate debug file or of .gnu_debugdata, which tools read where there is no .symtab. Errors:
// internal; unreadable and refused as SectionTable.
[[nodiscard]] Result<SiteSymbolsPlan> plan_site_symbols(const ElfFile& file,
                                                        const ProbeFile& probes);

}  // namespace reprobe
