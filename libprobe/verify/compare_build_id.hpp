// The build-id of a repaired file: the input's, or the one that --build-id=new computes.
#pragma once

#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"

namespace reprobe {

// It is the input's.
void compare_build_id(const ElfFile& before, const ElfFile& after, std::vector<Finding>& out);

// It is the SHA-256 of the file with zeros in its place, cut or repeated to its length.
void check_new_build_id(const ElfFile& after, std::vector<Finding>& out);

}  // namespace reprobe
