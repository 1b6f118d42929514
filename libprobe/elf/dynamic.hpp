// What a program asks of the dynamic linker: which libraries, and where to look for them. Read from
// the program headers, as the dynamic linker does, so that files without section headers are
// served. Format: System V ABI, chapter 5, "Dynamic Section" and "Program Interpreter".
#pragma once

#include <string>
#include <vector>

#include "libprobe/elf/file.hpp"

namespace reprobe {

struct DynamicInfo {
  std::vector<std::string> needed;  // DT_NEEDED, in order, each name once; never empty strings
  std::string soname;               // DT_SONAME; "" where absent, as the next two
  std::string rpath;                // DT_RPATH; "" where DT_RUNPATH is there, which overrides it
  std::string runpath;              // DT_RUNPATH
  bool has_runpath{};               // it may be empty, and still overrides DT_RPATH
  bool no_default_folders{};        // DF_1_NODEFLIB
  std::string interpreter;          // PT_INTERP; "" where absent
};

// A file without PT_DYNAMIC, or without its bytes (a debug file), gives empty fields. A string that
// lies outside the string table is left out; one that a hostile file states too often is cut.
[[nodiscard]] DynamicInfo read_dynamic(const ElfFile& file);

}  // namespace reprobe
