// What the index of a file is to say.
#pragma once

#include <functional>

#include "libprobe/notes/index.hpp"
#include "libprobe/probes/probe.hpp"

namespace reprobe {

// The index of a file's notes, dangling ones left out. `selected`: which probes, all where it is
// empty. Error refused: the notes could not be given back exactly (plain_notes(); notes with
// another base than .stapsdt.base, or whose addresses are not the file's own), or their code is not
// in this file.
[[nodiscard]] Result<ProbeIndex> index_of(const ElfFile& file, const ProbeFile& probes,
                                          const std::function<bool(const Probe&)>& selected = {});

// Do two indices stand for the same notes? What stands at the sites is as the file was when each
// was made.
[[nodiscard]] bool same_notes(const ProbeIndex& a, const ProbeIndex& b);

}  // namespace reprobe
