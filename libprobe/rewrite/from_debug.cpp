#include "libprobe/rewrite/from_debug.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "libprobe/audit/read_probes.hpp"
#include "libprobe/elf/file_ranges.hpp"
#include "libprobe/plan/compose.hpp"
#include "libprobe/plan/planned_source.hpp"
#include "libprobe/rewrite/note_section.hpp"
#include "libprobe/rewrite/section_table.hpp"

namespace reprobe {
namespace {

tl::unexpected<Error> refuse(std::string where, std::string reason, std::string hint = {}) {
  return fail(ErrorCode::refused, std::move(where), std::move(reason), std::move(hint));
}

std::string id_text(const ElfFile& file) {
  const std::string id = file.build_id();
  return id.empty() ? "none" : id;
}

// --- Do the two files belong together? ---

Result<void> check_headers(const ElfFile& file, const ElfFile& debug) {
  const ElfHeader& a = file.header();
  const ElfHeader& b = debug.header();
  if (a.type != ET_EXEC && a.type != ET_DYN) {
    return refuse("e_type", "the notes of " + type_name(a.type) + " files are not brought back");
  }
  const std::string id = file.build_id();
  if (id.empty() || id != debug.build_id()) {
    return refuse("build-id", fmt::format("the files are not of one link; the file has {}, the "
                                          "debug file {}",
                                          id_text(file), id_text(debug)));
  }
  if (a.is64 != b.is64 || a.order != b.order || a.machine != b.machine || a.type != b.type) {
    return refuse("ELF header", fmt::format("the debug file is of another kind; expected {} {}, "
                                            "found {} {}",
                                            machine_name(a.machine), type_name(a.type),
                                            machine_name(b.machine), type_name(b.type)));
  }
  if (file.sections().empty()) {
    return refuse("e_shoff", "the file has no section headers, and no place to name its notes");
  }
  if (!knows_nops(a.machine)) {
    return refuse("e_machine",
                  "whether a site holds a nop is not known on " + machine_name(a.machine));
  }
  return {};
}

std::vector<const Segment*> loads(const ElfFile& file) {
  std::vector<const Segment*> result;
  for (const Segment& segment : file.segments()) {
    if (segment.type == PT_LOAD) result.push_back(&segment);
  }
  return result;
}

// A build-id stays when a tool moves the code afterwards (prelink, patchelf, a rewriter).
Result<void> check_layout(const ElfFile& file, const ElfFile& debug) {
  const auto same_load = [](const Segment* a, const Segment* b) {
    return a->vaddr == b->vaddr && a->memsz == b->memsz && a->flags == b->flags;
  };
  if (!std::ranges::equal(loads(file), loads(debug), same_load)) {
    return refuse("program headers", "the segments lie elsewhere than in the debug file");
  }
  std::unordered_map<std::string_view, const Section*> by_name;  // the first of each name
  for (const Section& section : file.sections()) by_name.try_emplace(section.name, &section);
  for (const Section& theirs : debug.sections()) {
    const bool counters = theirs.allocated() && theirs.name == kProbesSection;
    if (!theirs.executable() && !counters) continue;
    const auto found = by_name.find(theirs.name);
    const Section* ours = found == by_name.end() ? nullptr : found->second;
    if (ours == nullptr && counters) continue;
    if (ours == nullptr || ours->addr != theirs.addr || ours->size != theirs.size) {
      return refuse(theirs.name, "the section lies elsewhere than in the debug file");
    }
  }
  return {};
}

// --- Which notes ---

using Identity = std::tuple<std::string, std::string, std::string, VirtAddr, VirtAddr>;

Identity identity(const Probe& probe) {
  return {probe.note.provider, probe.note.name, probe.note.arguments, probe.site, probe.semaphore};
}

std::map<Identity, std::size_t> identities(const std::vector<Probe>& probes) {
  std::map<Identity, std::size_t> counts;
  for (const Probe& probe : probes) ++counts[identity(probe)];
  return counts;
}

Refusal refusal(const Probe& probe, std::string reason) {
  return {probe.note.provider, probe.note.name, probe.site,
          fmt::format("{}+{:#x}", kStapsdtSection, probe.note.offset), std::move(reason)};
}

std::string why(const Probe& probe) {
  return fmt::format("{}{}{}", to_string(probe.verdict), probe.evidence.empty() ? "" : ": ",
                     fmt::join(probe.evidence, "; "));
}

// The counter is two bytes of data that the program may write.
bool counter_fits(const ElfFile& file, VirtAddr counter) {
  const Segment* segment = file.load_segment(counter);
  return segment != nullptr && (segment->flags & PF_W) != 0 &&
         counter.value - segment->vaddr.value <= segment->memsz.value - 2;
}

// A nop that a probe macro emits, in code.
bool on_nop(const Probe& probe) {
  const NopKind kind = probe.facts.nop.kind;
  return probe.facts.place == Place::executable && kind != NopKind::none && kind != NopKind::other;
}

// Which of the probes that the file alone leaves in doubt stand at an instruction of the function
// that the debug file's symbols name: `theirs` as the debug file has them, `ours` in the file.
std::vector<bool> proven_by_debug(const ElfFile& file, const std::vector<Probe>& theirs,
                                  const std::vector<Probe>& ours) {
  std::map<VirtAddr, std::vector<std::size_t>> doubtful;  // by the function's start
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const bool possible = ours[i].verdict == Verdict::ambiguous && on_nop(ours[i]) &&
                          theirs[i].verdict != Verdict::ambiguous && theirs[i].facts.function;
    if (possible) doubtful[theirs[i].facts.function->start].push_back(i);
  }
  std::vector<bool> proven(ours.size());
  Size budget{file.source().size()};
  for (const auto& [start, probes] : doubtful) {
    std::vector<VirtAddr> sites;
    for (const std::size_t i : probes) sites.push_back(theirs[i].site);
    const Function& function = *theirs[probes.front()].facts.function;
    const auto checks = check_boundaries(file, function, 0, sites, &budget);
    for (std::size_t k = 0; k < probes.size(); ++k) {
      proven[probes[k]] = checks[k].result == Boundary::yes;
    }
  }
  return proven;
}

class Restorer {
 public:
  Restorer(const ElfFile& file, const ElfFile& debug,
           const std::function<bool(const Probe&)>& selected)
      : file_(file), debug_(debug), selected_(selected) {}

  Result<FromDebugPlan> run() {
    for (auto done : {check_headers(file_, debug_), check_layout(file_, debug_)}) {
      if (!done) return tl::unexpected(done.error());
    }
    choose_notes();
    if (const Section* notes = file_.section(kStapsdtSection)) return compare_notes(*notes);
    if (FileRanges(file_).section_over_header()) {
      return refuse("section headers", "a section overlaps the ELF header");
    }
    if (auto done = drop_what_is_not_live(); !done) return tl::unexpected(done.error());
    if (!wanted_.empty()) {
      if (auto done = fix(); !done) return tl::unexpected(done.error());
      name_changed_sections();
    }
    for (Probe& probe : dangling_) {
      result_.fix.removed.push_back(result_.probes.size());
      result_.probes.push_back(std::move(probe));
    }
    for (Probe& probe : result_.probes) probe.note.bytes = {};  // views of files that are closed
    return std::move(result_);
  }

 private:
  void name_changed_sections() {
    result_.fix.changed_sections.emplace_back(kStapsdtSection);
    const auto names = static_cast<std::uint32_t>(file_.header().shstrndx);
    if (const Section* section = file_.section_at(names)) {
      result_.fix.changed_sections.push_back(section->name);
    }
  }

  // What the debug file itself knows: an unstripped twin has the code, and judges its own notes.
  void choose_notes() {
    const ProbeFile read = read_probes(debug_);
    for (const Finding& finding : read.scan.findings) {
      if (finding.severity != Severity::error) continue;
      result_.fix.refused.push_back({finding.provider, finding.name, std::nullopt,
                                     std::string(kStapsdtSection),
                                     finding.rule + ": " + finding.message});
    }
    for (const Probe& probe : read.probes) {
      if (selected_ && !selected_(probe)) continue;
      if (probe.verdict == Verdict::dangling) {
        dangling_.push_back(probe);
      } else if (probe.semaphore.value != 0 && !counter_fits(file_, probe.semaphore)) {
        result_.fix.refused.push_back(
            refusal(probe, fmt::format("its semaphore at {:#x} is not in writable memory",
                                       probe.semaphore.value)));
      } else {
        wanted_.push_back(probe);
      }
    }
  }

  // The file has notes: those of the debug file, or others that must not be mixed with them.
  Result<FromDebugPlan> compare_notes(const Section& section) {
    std::vector<Probe> present = read_probes(file_).probes;
    std::erase_if(present, [&](const Probe& probe) { return selected_ && !selected_(probe); });
    if (section.size.value == 0 || identities(present) != identities(wanted_)) {
      return refuse(section.name,
                    fmt::format("the file has notes of its own; {} probes, and the "
                                "debug file {}",
                                present.size(), wanted_.size()),
                    "reprobe diff shows how they differ");
    }
    return std::move(result_);
  }

  // The file with the notes in it is judged by its own code. Without one of them the others may be
  // judged differently: again, until all are live.
  Result<void> drop_what_is_not_live() {
    constexpr int kMaxRounds = 8;
    for (int round = 0; !wanted_.empty(); ++round) {
      if (round == kMaxRounds) {
        return refuse(std::string(kStapsdtSection),
                      "each note that is left out changes what the others mean");
      }
      auto plan = plan_notes();
      if (!plan) return tl::unexpected(plan.error());
      const auto after = ElfFile::open(planned_source(file_.source(), *plan));
      if (!after) return tl::unexpected(after.error());
      ProbeFile read = read_probes(*after);
      if (read.probes.size() != wanted_.size()) {
        return fail(ErrorCode::internal, std::string(kStapsdtSection),
                    "the notes are not read as they were written");
      }
      const std::vector<bool> proven = proven_by_debug(file_, wanted_, read.probes);
      std::vector<Probe> live;
      for (std::size_t i = 0; i < wanted_.size(); ++i) {
        if (identity(read.probes[i]) == identity(wanted_[i]) &&
            (read.probes[i].verdict == Verdict::live || proven[i])) {
          live.push_back(std::move(wanted_[i]));
        } else if (read.probes[i].verdict == Verdict::dangling) {
          dangling_.push_back(std::move(read.probes[i]));
        } else {
          result_.fix.refused.push_back(refusal(wanted_[i], why(read.probes[i])));
        }
      }
      const bool all = live.size() == wanted_.size();
      wanted_ = std::move(live);
      if (!all) continue;
      notes_ = std::move(*plan);
      result_.probes = std::move(read.probes);
      return {};
    }
    return {};
  }

  Result<Plan> plan_notes() const {
    const Section* base = file_.section(kBaseSection);
    std::vector<NoteFields> notes;
    for (const Probe& probe : wanted_) {
      NoteFields fields = probe.note;
      fields.location = probe.site;
      fields.semaphore = probe.semaphore;
      fields.base = base != nullptr ? base->addr : VirtAddr{};
      notes.push_back(std::move(fields));
    }
    auto headers = SectionTable::of(file_);
    if (!headers) return tl::unexpected(headers.error());
    Plan plan;
    auto done = append_notes(plan, *headers, file_, notes, "the notes of the debug file");
    if (!done) return tl::unexpected(done.error());
    done = headers->write(plan);
    if (!done) return tl::unexpected(done.error());
    return plan;
  }

  // What fix would do with the result is done at once: .stapsdt.base is put back.
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
      fix->repairs.push_back({std::string(kFromDebugRule), "brought back from the debug file", i});
    }
    result_.fix = std::move(*fix);
    return {};
  }

  const ElfFile& file_;
  const ElfFile& debug_;
  const std::function<bool(const Probe&)>& selected_;
  std::vector<Probe> wanted_;
  std::vector<Probe> dangling_;
  Plan notes_;
  FromDebugPlan result_;
};

}  // namespace

Result<FromDebugPlan> plan_from_debug(const ElfFile& file, const ElfFile& debug,
                                      const std::function<bool(const Probe&)>& selected) {
  return Restorer(file, debug, selected).run();
}

}  // namespace reprobe
