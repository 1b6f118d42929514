// What is said of an ELF file that was opened.
#pragma once

#include <string>

#include "reprobe/reprobe.hpp"
#include "tool/terminal.hpp"

namespace reprobe {

// What the reader had to step over, as warnings.
void warn_of_problems(const std::string& path, const ElfFile& file, const Terminal& terminal);

// What is wrong with the notes, as warnings: for the commands that do not report findings.
void warn_of_notes(const std::string& path, const NoteScan& scan, const Terminal& terminal);

}  // namespace reprobe
