// The notes of a file whose sites have moved to sleds: locations and arguments follow them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "libprobe/plan/plan.hpp"
#include "libprobe/probes/probe.hpp"
#include "libprobe/rewrite/empty_section.hpp"
#include "libprobe/rewrite/section_table.hpp"
#include "libprobe/rewrite/sled/emit.hpp"

namespace reprobe {

// The one section of notes. Error refused: there is none, or its notes cannot be rewritten: several
// sections, a loaded one, notes that are not understood, relocations kept by --emit-relocs.
[[nodiscard]] Result<const Section*> movable_notes(const ElfFile& file, const ProbeFile& probes);

// Address minus offset of .stapsdt.base, modulo 2^64; nothing where the file has none.
[[nodiscard]] std::optional<std::uint64_t> distance_of_base(const ElfFile& file);

// .stapsdt.base stands at the start of the sleds, empty: perf adds its OFFSET minus note.base to
// every location, so that it must share their distance between address and offset. The file must
// have one. Errors: see move_symbols().
[[nodiscard]] Result<void> move_base(Plan& plan, SectionTable& headers, const ElfFile& file,
                                     const EmptyPlace& place);

// Plans the new contents of the section: in place where they fit, otherwise at the end of the file.
// Probes at sites that `moved` lacks keep their location; every note gets `base`. Errors: refused
// (a note does not read back), internal.
[[nodiscard]] Result<void> move_notes(Plan& plan, SectionTable& headers, const ElfFile& file,
                                      const ProbeFile& probes, const Section& notes,
                                      const std::map<std::uint64_t, MovedSite>& moved,
                                      VirtAddr base);

}  // namespace reprobe
