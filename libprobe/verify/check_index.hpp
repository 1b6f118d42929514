// Proves that the index of a result, .note.reprobe, says what its notes say.
#pragma once

#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"
#include "libprobe/probes/probe.hpp"

namespace reprobe {

// Rule verify-index: an index that cannot be read, has another probe than the notes, or lacks one
// that is not dangling (where it is not an index of some of them); one that was written anew and is
// not in the form of docs/format.md, or says of a site what is not there. An index without entries
// and a file without one pass.
void check_index(const ElfFile& before, const ElfFile& after, const ProbeFile& probes,
                 std::vector<Finding>& out);

}  // namespace reprobe
