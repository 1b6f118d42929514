// Opening an ELF file for its probes.
#pragma once

#include <memory>
#include <string>

#include "libprobe/elf/file.hpp"
#include "libprobe/notes/stapsdt.hpp"
#include "tool/terminal.hpp"

namespace reprobe {

// map_file() for a file that was named on the command line.
[[nodiscard]] Result<std::shared_ptr<const ByteSource>> map_input(const std::string& path);

// open_file() likewise: for one of many files, most of which have no probes.
[[nodiscard]] Result<std::shared_ptr<const ByteSource>> open_input(const std::string& path);

// ElfFile::open(), which reads what it can of a damaged file. But probes are found by their
// section's name: where the sections of the file or their names cannot be read at all, "no probes"
// would be a guess, and this is an error (unreadable).
[[nodiscard]] Result<ElfFile> open_elf(std::shared_ptr<const ByteSource> source);

// What the reader had to step over, as warnings.
void warn_of_problems(const std::string& path, const ElfFile& file, const Terminal& terminal);

// What is wrong with the notes, as warnings: for the commands that do not report findings.
void warn_of_notes(const std::string& path, const NoteScan& scan, const Terminal& terminal);

}  // namespace reprobe
