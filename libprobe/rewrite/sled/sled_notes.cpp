#include "libprobe/rewrite/sled/sled_notes.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "libprobe/rewrite/note_section.hpp"
#include "libprobe/rewrite/plain_notes.hpp"
#include "libprobe/rewrite/section_symbols.hpp"
#include "libprobe/rewrite/sled/stack_arguments.hpp"

namespace reprobe {
namespace {

tl::unexpected<Error> refuse_notes(std::string why, std::string hint = "run reprobe fix first") {
  return fail(ErrorCode::refused, std::string(kStapsdtSection), std::move(why), std::move(hint));
}

// The probes with the fields that their notes are to have.
Result<ProbeFile> moved_probes(const ProbeFile& probes,
                               const std::map<std::uint64_t, MovedSite>& moved) {
  ProbeFile result = probes;
  for (Probe& probe : result.probes) {
    const auto site = moved.find(probe.site.value);
    if (site == moved.end()) continue;
    auto arguments = correct_stack_arguments(probe.note.arguments, site->second.lower);
    if (!arguments) {
      return fail(ErrorCode::internal, std::string(kStapsdtSection),
                  "arguments that cannot be corrected");
    }
    probe.site = site->second.sled;
    probe.note.arguments = std::move(*arguments);
  }
  return result;
}

}  // namespace

Result<const Section*> movable_notes(const ElfFile& file, const ProbeFile& probes) {
  for (const Section& section : file.sections()) {
    if (section.holds_relocations() && !section.allocated()) {
      const auto kept = file.relocations(section);
      const std::string first = kept && !kept->empty()
                                    ? fmt::format(" (the first in {} is of {:#x})", section.name,
                                                  kept->front().offset.value)
                                    : "";
      return refuse_notes(
          "the file keeps the relocations of its link, which sleds would contradict" + first,
          "link without --emit-relocs, or strip the relocations");
    }
  }
  return plain_notes(file, probes);
}

std::optional<std::uint64_t> distance_of_base(const ElfFile& file) {
  const Section* base = file.section(kBaseSection);
  if (base == nullptr) return std::nullopt;
  return base->addr.value - base->offset.value;
}

Result<void> move_base(Plan& plan, SectionTable& headers, const ElfFile& file,
                       const EmptyPlace& place) {
  const Section* base = file.section(kBaseSection);
  if (base == nullptr) return fail(ErrorCode::internal, "", "no base to move");
  if (names_loaded_symbol(file, base->index)) {
    return refuse_notes("a loaded symbol belongs to .stapsdt.base, which must follow the sleds",
                        "");
  }
  const std::string why = ".stapsdt.base has the sleds' distance between address and offset";
  if (auto done = move_symbols(plan, file, *base, place.address, why); !done) return done;
  for (auto done : {headers.set(*base, SectionField::addr, place.address.value, why),
                    headers.set(*base, SectionField::offset, place.offset.value, why),
                    headers.set(*base, SectionField::size, 0, why)}) {
    if (!done) return done;
  }
  return {};
}

Result<void> move_notes(Plan& plan, SectionTable& headers, const ElfFile& file,
                        const ProbeFile& probes, const Section& notes,
                        const std::map<std::uint64_t, MovedSite>& moved, VirtAddr base) {
  const auto result = moved_probes(probes, moved);
  if (!result) return tl::unexpected(result.error());
  std::vector<NoteFate> fates;
  for (const Probe& probe : result->probes) {
    const bool same = probe.site == probe.note.location && base == probe.note.base;
    fates.push_back(same ? NoteFate::keep : NoteFate::rewrite);
  }
  auto contents = build_notes(file, *result, notes, fates, base);
  if (!contents) return tl::unexpected(contents.error());
  Bytes bytes = std::move(contents->contents);
  const std::uint64_t size = bytes.size();
  if (size <= notes.size.value) {
    bytes.resize(static_cast<std::size_t>(notes.size.value));
    auto done =
        plan.replace(file.source(), notes.offset, std::move(bytes), "the notes name the sleds");
    if (!done) return done;
  } else {
    const auto offset = plan.append(file.source(), std::move(bytes), Size{4},
                                    "the notes with the sleds do not fit their old place");
    if (!offset) return tl::unexpected(offset.error());
    auto done = headers.set(notes, SectionField::offset, offset->value, "the notes have moved");
    if (!done) return done;
  }
  if (size == notes.size.value) return {};
  return headers.set(notes, SectionField::size, size, "the size of the notes");
}

}  // namespace reprobe
