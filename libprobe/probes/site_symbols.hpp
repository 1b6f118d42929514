// The symbols that name probes' sites: PROVIDER__NAME, where a probe has several sites
// PROVIDER__NAME.1, PROVIDER__NAME.2, ... by address.
//
// Measured with gdb 13, perf 6.1 and bpftrace 0.17: gdb takes any type; `perf probe` takes
// STT_FUNC, and others only where the file has debug information; bpftrace takes STT_FUNC
// (bcc_syms.cc) with a size that is not 0 (AttachedProbe::resolve_offset_uprobe). So they are local
// functions over the nop alone: what covers more would give other instructions the probe's name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/probes/probe.hpp"

namespace reprobe {

struct SiteSymbol {
  std::string name;
  VirtAddr value;  // the site; of Thumb code with bit 0, as of every function there
  Size size;
  std::uint32_t section{};
};

struct UnnamedSite {
  std::size_t probe{};  // index
  std::string reason;   // stable words
};

struct SiteSymbols {
  std::vector<SiteSymbol> symbols;   // by address, then by name
  std::vector<UnnamedSite> unnamed;  // live probes that get no symbol
};

// Of the live probes. A probe whose name some symbol of the file outside of such a group has gets
// none: a tracer would take both.
[[nodiscard]] SiteSymbols site_symbols(const ElfFile& file, const ProbeFile& probes);

}  // namespace reprobe
