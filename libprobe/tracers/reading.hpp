// The notes of a file as one consumer's library walks them. Each walk reads the raw bytes with
// that library's own padding and ends where that library would end.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "libprobe/notes/descriptor.hpp"
#include "libprobe/notes/walk.hpp"
#include "libprobe/tracers/facts.hpp"
#include "libprobe/tracers/report.hpp"

namespace reprobe::consumers {

// What a consumer takes from a note. Its strings are the probe's.
struct Seen {
  std::uint64_t location{};
  std::uint64_t base{};
  std::uint64_t semaphore{};
};

// False ends the walk.
using Visit = std::function<bool(const RawNote&)>;

// elfutils' gelf_getnote(): padding to 8 where sh_addralign is 8, else to 4; the padding of the
// last note must be inside the section.
void walk_like_libelf(const Facts& facts, const Section& section, const Visit& visit);
// BFD's elf_parse_notes(): padding to sh_addralign where that is 4 or 8, to 4 where it is less, and
// no note at all where it is more; the last padding may be missing.
void walk_like_bfd(const Facts& facts, const Section& section, const Visit& visit);

// The notes one consumer found, and why it did not find the others.
class Reading {
 public:
  explicit Reading(const Facts& facts);

  // The note as the consumer decodes it. Where that gives other strings than the probe's, the
  // consumer does not find the probe.
  void take(const Section& section, const RawNote& raw, const Descriptor& descriptor);
  // As gdb and SystemTap: takes a note of the exact owner and type whose descriptor ends at the
  // arguments' NUL, and skips every other.
  void take_strict(const Section& section, const RawNote& raw);
  // The consumer meets the note and skips it.
  void skip(const Section& section, const RawNote& raw, std::string_view reason);
  // It never looks at this section's notes.
  void skip_section(const Section& section, std::string_view reason);
  // It takes nothing from the file, whatever was taken before.
  void refuse(std::string_view reason);

  [[nodiscard]] const Seen* seen(std::size_t probe) const {
    return seen_[probe] ? &*seen_[probe] : nullptr;
  }

  // Reports who is listed and who is not.
  void tell(Report& report) const;
  // Reports those that are not seen as failures of this step.
  void tell_unseen(Step what, Report& report) const;

 private:
  const Facts& facts_;
  std::vector<std::optional<Seen>> seen_;                        // by probe
  std::vector<std::string_view> why_;                            // by probe: why it is not seen
  std::unordered_map<std::uint32_t, std::string_view> skipped_;  // by section
};

// The descriptor where it reads as a probe and ends at the arguments' NUL, as bcc, gdb and
// SystemTap want it.
[[nodiscard]] std::optional<Descriptor> strict_descriptor(const Facts& facts,
                                                          const Section& section,
                                                          const RawNote& raw);
// Bytes of the descriptor.
[[nodiscard]] ByteView descriptor_bytes(const Facts& facts, const Section& section,
                                        const RawNote& raw);
// namesz 8 and "stapsdt\0", as most consumers compare.
[[nodiscard]] bool exact_owner(const Facts& facts, const Section& section, const RawNote& raw);

}  // namespace reprobe::consumers
