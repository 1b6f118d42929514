// One file of a process: where in it ELF files begin, at which places they are loaded, and which of
// their probes' sites are mapped there.
#pragma once

#include <cstdint>
#include <map>
#include <set>
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
  // A piece, and the places at which the ELF file that it shows a part of may be loaded.
  struct Candidates {
    const Mapping* piece{};
    Start start{};
    std::shared_ptr<const MappedElf> elf;
    std::vector<Bias> biases;  // the likely ones first
    bool of_code{};            // it shows a part of a segment of code, if code is looked for
  };
  [[nodiscard]] std::vector<Candidates> find_candidates();
  // False: the piece shows nothing of the ELF file that begins there.
  bool find_biases(const Mapping& piece, Start start, std::vector<Candidates>& out);
  [[nodiscard]] Bias bias_of(const Candidates& candidate) const;
  // Adds the place, and those sites that stand where they are executed there.
  void load(const Candidates& candidate);
  // Adds sites that the piece shows at an address of their own, where no other piece shows them.
  void add_stray_sites(const Candidates& candidate);
  // Of those that the piece shows: use(probe, address).
  template <typename Use>
  void each_site(const Candidates& candidate, Use use) const;
  // Do the file's bytes of the probe's site stand at the address?
  [[nodiscard]] bool shows(const MappedElf& elf, Start start, std::size_t probe,
                           std::uint64_t address) const;
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
  std::vector<std::pair<Start, Bias>> order_;            // by address
  std::map<std::pair<Start, Bias>, std::size_t> votes_;  // of the pieces
  std::set<std::pair<Start, std::size_t>> found_;        // probes with a site at a place
  std::string unread_;                                   // why an ELF file cannot be read
  bool too_many_{};
};

}  // namespace reprobe
