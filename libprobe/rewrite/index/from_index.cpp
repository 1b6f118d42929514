#include "libprobe/rewrite/index/from_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "libprobe/audit/read_probes.hpp"
#include "libprobe/elf/file_ranges.hpp"
#include "libprobe/notes/index.hpp"
#include "libprobe/plan/compose.hpp"
#include "libprobe/plan/planned_source.hpp"
#include "libprobe/rewrite/note_section.hpp"
#include "libprobe/rewrite/section_table.hpp"

namespace reprobe {
namespace {

tl::unexpected<Error> refuse(std::string_view where, std::string reason, std::string hint = {}) {
  return fail(ErrorCode::refused, std::string(where), std::move(reason), std::move(hint));
}

// Does the site hold what it held when the index was made? Of sleds the section that tells them may
// be gone.
bool holds_what_it_held(const IndexEntry& entry, const Probe& probe) {
  switch (entry.kind) {
    case SiteKind::nop:
      return probe.facts.nop.kind == NopKind::nop;
    case SiteKind::nop5:
    case SiteKind::sled_nop5:
      return probe.facts.nop.kind == NopKind::nop5;
    case SiteKind::nop10:
    case SiteKind::sled_nop10:
    case SiteKind::sled_slot:
      return probe.facts.nop.kind == NopKind::nop10;
    default:
      return probe.facts.nop.kind == NopKind::none || probe.facts.nop.kind == NopKind::other;
  }
}

// Where a section without contents stands at an address: in a segment, or at its end.
std::optional<FileOffset> offset_at(const ElfFile& file, VirtAddr address) {
  if (const auto offset = file.offset_of(address)) return offset;
  for (const Segment& segment : file.segments()) {
    if (segment.type == PT_LOAD && address.value == segment.vaddr.value + segment.filesz.value) {
      return FileOffset{segment.offset.value + segment.filesz.value};
    }
  }
  return std::nullopt;
}

class Restorer {
 public:
  Restorer(const ElfFile& file, ProbeIndex index) : file_(file), index_(std::move(index)) {}

  Result<FromIndexPlan> run() {
    if (file_.sections().empty()) {
      // A table of no more than the program headers prove is no help: GNU strip 2.40 makes a
      // program of it that does not start (docs/format.md).
      return refuse("e_shoff", "the file has no section headers, and no place to name its notes",
                    "reprobe list reads the index; llvm-strip --strip-all leaves the headers");
    }
    if (FileRanges(file_).section_over_header()) {
      return refuse("section headers", "a section overlaps the ELF header");
    }
    const Section* base = file_.section(kBaseSection);
    if (base != nullptr && base->addr != index_.base) {
      return refuse(kBaseSection, fmt::format("the index is of other addresses; expected {:#x}, "
                                              "found {:#x}",
                                              base->addr.value, index_.base.value));
    }
    if (auto done = drop_what_is_not_there(); !done) return tl::unexpected(done.error());
    if (!index_.entries.empty()) {
      if (auto done = fix(); !done) return tl::unexpected(done.error());
    }
    for (Probe& probe : gone_) {
      result_.fix.removed.push_back(result_.probes.size());
      result_.probes.push_back(std::move(probe));
    }
    for (Probe& probe : result_.probes) probe.note.bytes = {};  // views of files that are closed
    return std::move(result_);
  }

 private:
  // The file with the notes in it is judged by its own code. Without one of them the others may be
  // judged differently: again, until none is left out.
  Result<void> drop_what_is_not_there() {
    constexpr int kMaxRounds = 8;
    for (int round = 0; !index_.entries.empty(); ++round) {
      if (round == kMaxRounds) {
        return refuse(kStapsdtSection, "each note that is left out changes what the others mean");
      }
      auto plan = plan_notes();
      if (!plan) return tl::unexpected(plan.error());
      const auto after = ElfFile::open(planned_source(file_.source(), *plan));
      if (!after) return tl::unexpected(after.error());
      ProbeFile read = read_probes(*after);
      if (read.probes.size() != index_.entries.size()) {
        return fail(ErrorCode::internal, std::string(kStapsdtSection),
                    "the notes are not read as they were written");
      }
      if (keep(read.probes)) {
        notes_ = std::move(*plan);
        result_.probes = std::move(read.probes);
        return {};
      }
    }
    return {};
  }

  // Leaves the entries whose probes are there; are those all?
  bool keep(std::vector<Probe>& probes) {
    std::vector<IndexEntry> kept;
    for (std::size_t i = 0; i < probes.size(); ++i) {
      IndexEntry& entry = index_.entries[i];
      Probe& probe = probes[i];
      const bool possible = probe.verdict == Verdict::ambiguous && holds_what_it_held(entry, probe);
      if (probe.site == entry.site && (probe.verdict == Verdict::live || possible)) {
        kept.push_back(std::move(entry));
      } else if (probe.verdict == Verdict::dangling) {
        gone_.push_back(std::move(probe));
      } else {
        result_.fix.refused.push_back(
            {entry.provider, entry.name, entry.site, std::string(kIndexSection),
             fmt::format("{}{}{}", to_string(probe.verdict), probe.evidence.empty() ? "" : ": ",
                         fmt::join(probe.evidence, "; "))});
      }
    }
    const bool all = kept.size() == probes.size();
    index_.entries = std::move(kept);
    return all;
  }

  // docs/format.md, "The notes that it stands for".
  Result<Plan> plan_notes() const {
    std::vector<NoteFields> notes;
    for (const IndexEntry& entry : index_.entries) {
      notes.push_back({.location = entry.site,
                       .base = index_.base,
                       .semaphore = entry.semaphore,
                       .provider = entry.provider,
                       .name = entry.name,
                       .arguments = entry.arguments});
    }
    auto headers = SectionTable::of(file_);
    if (!headers) return tl::unexpected(headers.error());
    if (auto done = add_base(*headers); !done) return tl::unexpected(done.error());
    Plan plan;
    auto done = append_notes(plan, *headers, file_, notes, "the notes of the index");
    if (!done) return tl::unexpected(done.error());
    done = headers->write(plan);
    if (!done) return tl::unexpected(done.error());
    return plan;
  }

  Result<void> add_base(SectionTable& headers) const {
    if (index_.base.value == 0 || file_.section(kBaseSection) != nullptr) return {};
    const auto offset = offset_at(file_, index_.base);
    if (!offset) return refuse(kIndexSection, "the base of the index is not loaded");
    Section base;
    base.name = kBaseSection;
    base.type = SHT_PROGBITS;
    base.flags = SHF_ALLOC;
    base.addr = index_.base;
    base.offset = *offset;
    base.addralign = Size{1};
    const auto added = headers.add(base, ".stapsdt.base stands where it stood");
    return added ? Result<void>{} : tl::unexpected(added.error());
  }

  // What fix would do with the result is done at once.
  Result<void> fix() {
    const auto source = planned_source(file_.source(), notes_);
    const auto after = ElfFile::open(source);
    if (!after) return tl::unexpected(after.error());
    auto fix = plan_fix(*after, read_probes(*after), {});
    if (!fix) return tl::unexpected(fix.error());
    auto plan = compose(file_.source(), notes_, fix->plan);
    if (!plan) return tl::unexpected(plan.error());
    // Indices of probes in it are those of the restored ones.
    fix->plan = std::move(*plan);
    std::ranges::move(result_.fix.refused, std::back_inserter(fix->refused));
    for (std::size_t i = 0; i < result_.probes.size(); ++i) {
      fix->repairs.push_back({std::string(repair::notes_stripped), "written from the index", i});
    }
    fix->changed_sections.emplace_back(kStapsdtSection);
    fix->changed_sections.emplace_back(kBaseSection);
    const auto names = static_cast<std::uint32_t>(file_.header().shstrndx);
    if (const Section* section = file_.section_at(names)) {
      fix->changed_sections.push_back(section->name);
    }
    result_.fix = std::move(*fix);
    return {};
  }

  const ElfFile& file_;
  ProbeIndex index_;  // of the notes that are wanted still
  std::vector<Probe> gone_;
  Plan notes_;
  FromIndexPlan result_;
};

}  // namespace

bool can_restore_from_index(const ElfFile& file) {
  if (std::ranges::any_of(file.sections(), holds_notes)) return false;
  const auto place = find_index(file);
  if (!place) return false;
  const auto index = read_index(file, *place);
  return !index || !index->entries.empty();
}

Result<FromIndexPlan> plan_from_index(const ElfFile& file) {
  const auto place = find_index(file);
  if (!place) return refuse(kIndexSection, "the file has no index");
  auto index = read_index(file, *place);
  if (!index) return tl::unexpected(index.error());
  return Restorer(file, std::move(*index)).run();
}

}  // namespace reprobe
