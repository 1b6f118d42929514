#include "tool/elf_input.hpp"

#include <fmt/format.h>

namespace reprobe {

void warn_of_problems(const std::string& path, const ElfFile& file, const Terminal& terminal) {
  for (const ReadProblem& problem : file.problems()) {
    terminal.warning(fmt::format("{}: [{}] {}", path, problem.where, problem.message));
  }
}

void warn_of_notes(const std::string& path, const NoteScan& scan, const Terminal& terminal) {
  for (const Finding& finding : scan.findings) {
    const std::string where =
        finding.note_offset ? fmt::format("[note {:#x}] ", *finding.note_offset) : "";
    terminal.warning(fmt::format("{}: {}{}: {}", path, where, finding.rule, finding.message));
  }
}

}  // namespace reprobe
