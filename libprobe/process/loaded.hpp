// The probes of a process: the files that it maps as code, each probe's run-time address, whether
// its site is armed, and its counter.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/probes/probe.hpp"
#include "libprobe/process/process.hpp"
#include "libprobe/process/site_state.hpp"

namespace reprobe {

// A file as mapped, read once however many processes map it.
struct MappedElf {
  std::shared_ptr<const ByteSource> source;  // the ELF file alone
  ElfFile file;
  ProbeFile probes;  // of its notes, else of its index, else of the records of SystemTap up to 1.3
};

// Where a file is loaded.
struct LoadedElf {
  std::string path;            // as the process's mount namespace names it
  bool deleted{};              // or replaced: the path leads to it no more
  std::uint64_t elf_offset{};  // where in the file it begins: not 0 of a library inside of a zip
  std::uint64_t bias{};        // run-time address minus address in the file, modulo 2^64
  std::shared_ptr<const MappedElf> elf;
};

struct LoadedProbe {
  std::uint64_t address{};  // of the site, in the process
  SiteState state;
  std::uint64_t counter_address{};       // 0: the probe has none
  std::optional<std::uint16_t> counter;  // its value; nothing where it cannot be read
};

// A file that is mapped as code and could not be read.
struct UnreadFile {
  std::string path;
  std::string reason;
};

struct LoadedFiles {
  std::vector<LoadedElf> files;  // by address
  std::vector<UnreadFile> unread;
};

// Files by device and inode. Not to be used by two threads at once.
class MappedFiles {
 public:
  // Nothing in a zombie or a kernel thread. Errors: those of Process::mappings().
  [[nodiscard]] Result<LoadedFiles> of(const Process& process);

 private:
  using FileKey = std::pair<std::uint64_t, std::uint64_t>;  // device, inode
  using Source = Result<std::shared_ptr<const ByteSource>>;
  using Elf = Result<std::shared_ptr<const MappedElf>>;

  [[nodiscard]] const Source& source(const Process& process, const std::vector<Mapping>& mappings,
                                     const Mapping& mapping);
  [[nodiscard]] const Elf& elf(const FileKey& key, std::uint64_t offset,
                               const std::shared_ptr<const ByteSource>& source);

  std::map<FileKey, Source> sources_;
  std::map<std::pair<FileKey, std::uint64_t>, Elf> elves_;  // by where in the file they begin
};

// One for each probe of the file, in their order. Of a dangling probe nothing is read.
[[nodiscard]] std::vector<LoadedProbe> read_loaded(const Process& process, const LoadedElf& loaded);

}  // namespace reprobe
