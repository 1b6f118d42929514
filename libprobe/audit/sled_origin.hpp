// Where the sleds of a file came from: its undo record still holds the notes that the original had.
#pragma once

#include <memory>
#include <optional>

#include "libprobe/plan/plan.hpp"
#include "libprobe/probes/probe.hpp"

namespace reprobe {

// The file as its undo record says it was. No comparison with the record's SHA-256: whoever asks
// needs the headers, the notes or the code of one function, and other tools leave those alone.
class OriginalFile {
 public:
  // Nothing where there is no record, or it cannot be read. `file` must outlive it.
  [[nodiscard]] static std::unique_ptr<const OriginalFile> of(const ElfFile& file);

  [[nodiscard]] const ElfFile& elf() const { return *elf_; }

 private:
  explicit OriginalFile(Plan plan) : plan_(std::move(plan)) {}

  Plan plan_;
  std::optional<ElfFile> elf_;
};

// Of a file with sleds, the verdicts of the file that they were made for: the code around a sled is
// the tool's own, and sleds change the code around their neighbours; neither says anything of a
// probe. Also fills Probe::origin of the probes in kSledSection. `original` are the judged probes
// of OriginalFile. Nothing is taken where another tool changed the notes since, and of a site that
// it changed since only the origin.
void take_origins(ProbeFile& probes, const ProbeFile& original);

}  // namespace reprobe
