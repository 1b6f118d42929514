#include "libprobe/rewrite/legacy/upgrade.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "libprobe/audit/read_probes.hpp"
#include "libprobe/plan/compose.hpp"
#include "libprobe/plan/planned_source.hpp"
#include "libprobe/rewrite/legacy/drop_relocations.hpp"
#include "libprobe/rewrite/legacy/own_bytes.hpp"
#include "libprobe/rewrite/note_section.hpp"
#include "libprobe/rewrite/section_table.hpp"

namespace reprobe {
namespace {

// nop; nopl 0(%rax); nop: as many of them as the call is long (5 bytes, 6 through the global offset
// table). The site is the one-byte nop, at which the kernel
// always traps. A nop of five bytes would become a call on Linux 6.17 to 7.1, of which a child that
// a traced program forks dies: its memory does not have what is called (uprobes.c, VM_DONTCOPY).
constexpr std::array kNops{std::byte{0x90}, std::byte{0x0f}, std::byte{0x1f},
                           std::byte{0x40}, std::byte{0},    std::byte{0x90}};

tl::unexpected<Error> refuse(std::string why) {
  return fail(ErrorCode::refused, std::string(kProbesSection), "legacy-record: " + std::move(why));
}

class Upgrader {
 public:
  Upgrader(const ElfFile& file, const LegacyProbes& legacy, const FixOptions& options)
      : file_(file), legacy_(legacy), options_(options), section_(*legacy.scan.section) {}

  Result<UpgradePlan> run() {
    if (auto done = check(); !done) return tl::unexpected(done.error());
    choose();
    if (wanted_.empty()) return std::move(result_);
    auto headers = SectionTable::of(file_);
    if (!headers) return tl::unexpected(headers.error());
    for (const auto step : {&Upgrader::write_notes, &Upgrader::write_records,
                            &Upgrader::write_flags, &Upgrader::write_calls}) {
      if (auto done = (this->*step)(*headers); !done) return tl::unexpected(done.error());
    }
    if (auto done = headers->write(plan_); !done) return tl::unexpected(done.error());
    return fix();
  }

 private:
  Result<void> check() const {
    const std::string why = why_not_own(file_, section_);
    if (!why.empty()) return refuse(why);
    for (const LegacyRecord& record : legacy_.scan.records) {
      if (record.unresolved) return refuse("a record takes a symbol of another module");
    }
    for (const Section& table : file_.sections()) {
      if (table.holds_relocations() && !table.allocated() && table.info == section_.index) {
        return refuse("the relocations that --emit-relocs kept for it say absolute words");
      }
    }
    if (legacy_.file.debug_file) return refuse("the code is not in this file");
    return {};
  }

  void refuse_probe(const Probe& probe, std::string reason) {
    result_.fix.refused.push_back({probe.note.provider, probe.note.name,
                                   probe.site.value != 0 ? std::optional(probe.site) : std::nullopt,
                                   fmt::format("{}+{:#x}", kProbesSection, probe.note.offset),
                                   "legacy-record: " + std::move(reason)});
  }

  // A call that is left says why itself; which record it would be of is not always known.
  [[nodiscard]] std::string why_no_call(const std::string& name) const {
    std::size_t nameless = 0;
    for (const LegacyCallRefusal& call : legacy_.calls.refused) {
      if (call.name == name)
        return fmt::format("its call at {:#x} is left: {}", call.site.value, call.reason);
      nameless += call.name.empty() ? 1 : 0;
    }
    if (nameless == 0) return "no call that passes its name was recognised";
    return fmt::format("which of {} calls of syscall() that are left passes its name is not known",
                       nameless);
  }

  void choose() {
    for (std::size_t i = 0; i < legacy_.file.probes.size(); ++i) {
      const Probe& probe = legacy_.file.probes[i];
      const LegacyRecord& record = legacy_.scan.records[legacy_.record[i]];
      if (record.is_call() && probe.verdict != Verdict::live) {
        refuse_probe(probe, why_no_call(probe.note.name));
      } else if (!record.is_call() && record.form == LegacyForm::uprobe2 &&
                 !note_arguments(record, file_.header())) {
        refuse_probe(probe, "its arguments are not as many as it says");
      } else if (probe.verdict == Verdict::dangling) {
        result_.fix.repairs.push_back(
            {std::string(repair::dangling),
             fmt::format("{}:{} gets no note: {}", probe.note.provider, probe.note.name,
                         probe.evidence.empty() ? "" : probe.evidence.front()),
             std::nullopt});
      } else {
        wanted_.push_back(&probe);
        if (record.is_call()) calls_.insert(probe.site);
      }
    }
    for (const Finding& finding : legacy_.scan.findings) {
      result_.fix.refused.push_back({"", "", std::nullopt, std::string(kProbesSection),
                                     finding.rule + ": " + finding.message});
    }
    for (const LegacyCallRefusal& call : legacy_.calls.refused) {
      result_.fix.refused.push_back({"", call.name, call.site, "", "legacy-call: " + call.reason});
    }
  }

  Result<void> write_notes(SectionTable& headers) {
    std::vector<NoteFields> notes;
    for (const Probe* probe : wanted_) {
      NoteFields fields = probe->note;
      fields.location = probe->site;
      fields.semaphore = probe->semaphore;
      fields.base = VirtAddr{};  // plan_fix() puts .stapsdt.base where it belongs
      notes.push_back(std::move(fields));
    }
    return append_notes(plan_, headers, file_, notes, "notes for the records");
  }

  // A section that is not loaded has no address that a distance could count from.
  Result<void> write_records(SectionTable& headers) {
    if (!section_.allocated()) return {};
    std::set<std::uint64_t> places;
    for (const LegacyRecord& record : legacy_.scan.records) {
      if (record.self_relative) continue;
      if (auto done = write_record(record, places); !done) return done;
    }
    const auto dropped = drop_relocations(plan_, headers, file_, places);
    if (!dropped) return tl::unexpected(dropped.error());
    for (const std::string& name : dropped->sections) changed_.push_back(name);
    changed_.emplace_back(kProbesSection);
    relocations_ = dropped->count;
    textrel_ = dropped->textrel;
    return {};
  }

  Result<void> write_record(const LegacyRecord& record, std::set<std::uint64_t>& places) {
    const ElfHeader& header = file_.header();
    const auto put = [&](std::uint64_t at, unsigned width, std::uint64_t value) {
      Bytes bytes(width);
      store_uint(bytes, 0, width, header.order, value);
      return plan_.replace(file_.source(), FileOffset{section_.offset.value + at}, std::move(bytes),
                           "the record's addresses count from themselves");
    };
    const auto old = file_.source().slice(FileOffset{section_.offset.value + record.offset},
                                          Size{4}, "a record");
    if (!old) return tl::unexpected(old.error());
    const std::uint64_t magic = load_uint(*old, 0, 4, header.order) | kSelfRelative;
    if (auto done = put(record.offset, 4, magic); !done) return done;
    for (const LegacyWord& word : record.words) {
      const std::uint64_t address = section_.addr.value + word.offset;
      places.insert(address);
      std::uint64_t distance = word.value.value == 0 ? 0 : word.value.value - address;
      // 0 says that there is none.
      if (word.value.value == address) return refuse("a word of a record points at itself");
      if (!header.is64) distance &= 0xffffffffU;
      if (auto done = put(word.offset, header.word(), distance); !done) return done;
    }
    return {};
  }

  // Nothing writes into the section any more, unless a tracer raises a counter there or near it.
  Result<void> write_flags(SectionTable& headers) {
    if (!section_.allocated() || (section_.flags & SHF_WRITE) == 0) return {};
    if (!only_records() || counter_is_near()) return {};
    read_only_ = true;
    return headers.set(section_, SectionField::flags, section_.flags & ~SHF_WRITE,
                       "nothing writes into the records any more");
  }

  // Everything but zeros belongs to a record.
  [[nodiscard]] bool only_records() const {
    const auto bytes = file_.contents(section_);
    if (!bytes) return false;
    std::uint64_t at = 0;
    const auto zeros = [&](std::uint64_t end) {
      for (; at < end; ++at) {
        if ((*bytes)[static_cast<std::size_t>(at)] != std::byte{0}) return false;
      }
      return true;
    };
    for (const auto& [begin, end] : legacy_.scan.used) {
      if (!zeros(begin)) return false;
      at = std::max(at, end);
    }
    return zeros(bytes->size());
  }

  [[nodiscard]] bool counter_is_near() const {
    const std::uint64_t page =
        file_.header().machine == EM_X86_64 || file_.header().machine == EM_386
            ? 0x1000
            : 0x10000;  // the largest that Linux has there
    const std::uint64_t first = section_.addr.value / page;
    const std::uint64_t last = (section_.addr.value + section_.size.value - 1) / page;
    const auto near = [&](VirtAddr counter) {
      return counter.value != 0 && counter.value / page >= first && counter.value / page <= last;
    };
    return std::ranges::any_of(legacy_.file.probes, near, &Probe::semaphore);
  }

  Result<void> write_calls(SectionTable&) {
    std::set<std::uint32_t> own;  // each costs a look at all headers
    for (const VirtAddr site : calls_) {
      const auto offset = file_.offset_of(site);
      const Section* code = file_.section_containing(site);
      if (!offset || code == nullptr) return refuse("a call is not in a section of code");
      if (own.insert(code->index).second && !why_not_own(file_, *code).empty()) {
        return refuse("the code's section overlaps something else");
      }
      // e8 or ff 15: find_legacy_calls() knows no others.
      const auto first = file_.source().slice(*offset, Size{1}, "a call");
      if (!first) return tl::unexpected(first.error());
      const std::ptrdiff_t size = first->front() == std::byte{0xe8} ? 5 : 6;
      auto done = plan_.replace(file_.source(), *offset, Bytes(kNops.begin(), kNops.begin() + size),
                                "a call of syscall() that was the probe becomes a nop");
      if (!done) return done;
      changed_.push_back(code->name);
    }
    return {};
  }

  // What fix would do with the result is done at once: .stapsdt.base is put down, notes of code
  // that is gone go.
  Result<UpgradePlan> fix() {
    const auto source = planned_source(file_.source(), plan_);
    const auto after = ElfFile::open(source);
    if (!after) return tl::unexpected(after.error());
    ProbeFile probes = read_probes(*after);
    if (probes.probes.size() != wanted_.size()) {
      return fail(ErrorCode::internal, std::string(kStapsdtSection),
                  "the notes are not read as they were written");
    }
    auto fix = plan_fix(*after, probes, options_);
    if (!fix) return tl::unexpected(fix.error());
    if (!fix->removed.empty()) return refuse("a note would be dangling, and its record is not");
    auto plan = compose(file_.source(), plan_, fix->plan);
    if (!plan) return tl::unexpected(plan.error());
    fix->plan = std::move(*plan);
    if (auto done = check_result(fix->plan); !done) return tl::unexpected(done.error());
    std::ranges::move(result_.fix.refused, std::back_inserter(fix->refused));
    std::ranges::move(result_.fix.repairs, std::back_inserter(fix->repairs));
    std::ranges::move(changed_, std::back_inserter(fix->changed_sections));
    fix->rewritten.clear();  // all are new
    report(*fix, probes);
    result_.fix = std::move(*fix);
    result_.probes = std::move(probes.probes);
    return std::move(result_);
  }

  // A record and its note may be judged differently, where the notes together show more.
  [[nodiscard]] Result<void> check_result(const Plan& plan) const {
    const auto source = planned_source(file_.source(), plan);
    const auto after = ElfFile::open(source);
    if (!after) return tl::unexpected(after.error());
    // In a hostile file a text lies over a word.
    const auto same = [](const LegacyRecord& a, const LegacyRecord& b) {
      return a.offset == b.offset && a.name == b.name && a.provider == b.provider &&
             a.operands == b.operands && a.words.size() == b.words.size() && a.count == b.count;
    };
    if (!std::ranges::equal(legacy_.scan.records, scan_legacy(*after).records, same)) {
      return refuse("the records would be read in another way");
    }
    for (const Probe& probe : read_probes(*after).probes) {
      const bool on_nop = probe.facts.nop.kind == NopKind::nop;
      if (probe.verdict == Verdict::live || (probe.verdict == Verdict::ambiguous && on_nop))
        continue;
      return refuse(fmt::format("the note of {}:{} would be {}", probe.note.provider,
                                probe.note.name, to_string(probe.verdict)));
    }
    return {};
  }

  void report(FixPlan& fix, const ProbeFile& probes) const {
    const std::string rule(kUpgradeRule);
    for (std::size_t i = 0; i < probes.probes.size(); ++i) {
      const bool call = calls_.contains(probes.probes[i].site);
      fix.repairs.push_back({rule, call ? "the call becomes a nop with a note" : "gets a note", i});
    }
    if (section_.allocated()) {
      fix.repairs.push_back({rule,
                             fmt::format("the records need no relocations, {} removed{}{}",
                                         relocations_, textrel_ ? "; DT_TEXTREL removed" : "",
                                         read_only_ ? "; .probes is not writable" : ""),
                             std::nullopt});
    }
  }

  const ElfFile& file_;
  const LegacyProbes& legacy_;
  const FixOptions& options_;
  const Section& section_;
  std::vector<const Probe*> wanted_;
  std::set<VirtAddr> calls_;
  Plan plan_;
  std::vector<std::string> changed_;
  std::size_t relocations_{};
  bool textrel_{}, read_only_{};
  UpgradePlan result_;
};

}  // namespace

Result<UpgradePlan> plan_upgrade(const ElfFile& file, const LegacyProbes& legacy,
                                 const FixOptions& options) {
  if (!legacy.found()) return UpgradePlan{};
  return Upgrader(file, legacy, options).run();
}

}  // namespace reprobe
