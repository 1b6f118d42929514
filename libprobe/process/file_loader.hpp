// One file of a process: where in it ELF files begin, at which places they are loaded, and which of
// their probes' sites are mapped there.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libprobe/process/loaded.hpp"
#include "libprobe/process/mapping_groups.hpp"

namespace reprobe {

class FileLoader {
 public:
  // What is found goes to `out`; all must outlive the loader.
  FileLoader(MappedFiles& files, const Process& process, const MappingGroup& group,
             LoadedFiles& out)
      : files_(files), process_(process), group_(group), out_(out) {}

  void run();

 private:
  using Sites = std::map<std::size_t, std::uint64_t>;  // by probe: the address
  struct Place {
    std::shared_ptr<const MappedElf> elf;
    Sites sites;
  };
  using Start = std::uint64_t;
  using Bias = std::uint64_t;

  void give_up(std::string reason);
  // Loads what the piece shows of the ELF file that begins there. False: it shows none of its code.
  bool load(const Mapping& piece, Start start);
  // Do the file's bytes of the probe's site stand at the address?
  [[nodiscard]] bool shows(const MappedElf& elf, Start start, std::size_t probe,
                           std::uint64_t address) const;
  void add_sites(Place& place, const Mapping& piece, Start start) const;
  // Sites that are mapped nowhere go to the first place of their ELF file.
  void add_missing();
  [[nodiscard]] bool is_copied(const Place& place, Bias bias) const;

  MappedFiles& files_;
  const Process& process_;
  const MappingGroup& group_;
  LoadedFiles& out_;
  OpenedFile file_;
  std::shared_ptr<const ByteSource> source_;
  std::map<std::pair<Start, Bias>, Place> places_;
  std::vector<std::pair<Start, Bias>> order_;  // by address
  std::string unread_;                         // why an ELF file cannot be read
  bool too_many_{};
};

}  // namespace reprobe
