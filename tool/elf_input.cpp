#include "tool/elf_input.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>

#include "libprobe/elf/open_file.hpp"

namespace reprobe {
namespace {

// The fields of the ELF header that lead to the sections.
bool is_about_sections(const ReadProblem& problem) {
  constexpr std::array<std::string_view, 4> kFields = {"e_shoff", "e_shentsize", "e_shnum",
                                                       "e_shstrndx"};
  return std::ranges::find(kFields, problem.where) != kFields.end();
}

Result<std::shared_ptr<const ByteSource>> with_hint(
    Result<std::shared_ptr<const ByteSource>> source, const std::string& path) {
  std::error_code failure;
  if (!source && std::filesystem::is_directory(path, failure)) {
    source.error().hint = "reprobe audit walks folders";
  }
  return source;
}

}  // namespace

Result<std::shared_ptr<const ByteSource>> map_input(const std::string& path) {
  return with_hint(map_file(path), path);
}

Result<std::shared_ptr<const ByteSource>> open_input(const std::string& path) {
  return with_hint(open_file(path), path);
}

Result<ElfFile> open_elf(std::shared_ptr<const ByteSource> source) {
  auto file = ElfFile::open(std::move(source));
  // A file whose sections have no names at all says so with SHN_UNDEF.
  if (!file || (!file->sections().empty() && file->header().shstrndx == SHN_UNDEF)) return file;
  const auto problem = std::ranges::find_if(file->problems(), is_about_sections);
  if (problem == file->problems().end()) return file;
  return fail(ErrorCode::unreadable, problem->where, problem->message,
              "the file is damaged or cut short; probes are found through its section headers");
}

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
