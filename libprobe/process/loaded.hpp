// The probes of a process: the files that it maps as code, each probe's run-time address, whether
// its site is armed, and its counter.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/probes/probe.hpp"
#include "libprobe/process/mapped_source.hpp"
#include "libprobe/process/process.hpp"
#include "libprobe/process/site_state.hpp"

namespace reprobe {

// A file as mapped, read once however many processes map it.
struct MappedElf {
  std::shared_ptr<const ByteSource> source;  // the ELF file alone
  ElfFile file;
  ProbeFile probes;  // of its notes, else of its index, else of the records of SystemTap up to 1.3
  // The sites that have bytes in the file: their offset there, and the probe's index; ascending.
  std::vector<std::pair<std::uint64_t, std::size_t>> sites;
};

// The bits of an address of the file's class.
[[nodiscard]] inline std::uint64_t address_mask(const ElfFile& file) {
  return file.header().is64 ? ~std::uint64_t{0} : 0xffffffffU;
}

// A probe's site in a process.
struct LoadedSite {
  std::size_t probe{};      // index
  std::uint64_t address{};  // of a site that is not mapped, where it would be
  bool mapped{};            // the file's bytes of the site are mapped there
};

// Where a file is loaded.
struct LoadedElf {
  std::string path;            // as the process's mount namespace names it
  bool deleted{};              // or replaced: the path leads to it no more
  std::uint64_t elf_offset{};  // where in the file it begins: not 0 of a library inside of a zip
  std::uint64_t bias{};        // run-time address minus address in the file, modulo 2^64
  std::shared_ptr<const MappedElf> elf;
  std::shared_ptr<const std::vector<Mapping>> pieces;  // of the file, by address
  // By probe. A file that is loaded at several places has at each the sites that are mapped there;
  // those that are mapped nowhere stand at the first.
  std::vector<LoadedSite> sites;
};

struct LoadedProbe {
  std::size_t probe{};      // index
  std::uint64_t address{};  // of the site, in the process; 0 of a dangling probe
  SiteState state;
  std::uint64_t counter_address{};       // 0: the probe has none, or it is not mapped
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
  bool mapped{};  // it maps a file as code: a program that the kernel loads just now does not yet
};

// Not to be used by two threads at once.
class MappedFiles {
 public:
  // Nothing in a zombie or a kernel thread. Errors: those of Process::mappings().
  [[nodiscard]] Result<LoadedFiles> of(const Process& process);

 private:
  using Source = Result<std::shared_ptr<const ByteSource>>;
  using Elf = Result<std::shared_ptr<const MappedElf>>;
  friend class FileLoader;

  [[nodiscard]] Source source(const OpenedFile& file);
  [[nodiscard]] const Elf& elf(const FileIdentity& identity, std::uint64_t offset,
                               const std::shared_ptr<const ByteSource>& source);

  std::map<FileIdentity, std::shared_ptr<const ByteSource>> sources_;
  std::map<std::pair<FileIdentity, std::uint64_t>, Elf> elves_;  // by where in the file they begin
};

// One for each of the file's sites there, in their order.
[[nodiscard]] std::vector<LoadedProbe> read_loaded(const Process& process, const LoadedElf& loaded);

}  // namespace reprobe
