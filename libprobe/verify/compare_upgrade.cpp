#include "libprobe/verify/compare_upgrade.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <span>
#include <string>
#include <tuple>

#include "libprobe/audit/legacy_probes.hpp"
#include "libprobe/audit/read_probes.hpp"
#include "libprobe/code/flow.hpp"
#include "libprobe/code/true_branches.hpp"
#include "libprobe/plan/plan.hpp"
#include "libprobe/plan/planned_source.hpp"
#include "libprobe/verify/compare_dynamic.hpp"
#include "libprobe/verify/constant_registers.hpp"
#include "libprobe/verify/counter_values.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

// nop; nopl 0(%rax); nop: as many bytes as the call had
constexpr std::array<std::uint8_t, 6> kNops{0x90, 0x0f, 0x1f, 0x40, 0x00, 0x90};
constexpr unsigned kRsi = 6, kRdi = 7;
constexpr std::uint64_t kLongestName = 4096;

// What a tracer sees of a probe.
using SeenNote = std::tuple<std::string, std::string, std::string, VirtAddr, VirtAddr>;

SeenNote seen_note(const Probe& probe) {
  return {probe.note.provider, probe.note.name, probe.note.arguments, probe.site, probe.semaphore};
}

class UpgradeComparer {
 public:
  UpgradeComparer(const ElfFile& before, const ElfFile& after, const CompareOptions& options)
      : before_(before), after_(after), options_(options), now_(read_probes(after)) {}

  std::vector<Finding> run() {
    old_ = scan_legacy(before_);
    const LegacyScan records = scan_legacy(after_);
    if (compare_records(records)) {
      ComparedDynamic dynamic = compare_dynamic(before_, after_, words_);
      std::ranges::move(dynamic.findings, std::back_inserter(out_));
      std::ranges::move(dynamic.bytes, std::back_inserter(elsewhere_.bytes));
      sizes_ = std::move(dynamic.sizes);
    }
    compare_notes();
    compare_rest();
    return std::move(out_);
  }

 private:
  void differs(std::string rule, std::string message) {
    out_.push_back(verify_finding(std::move(rule), std::move(message)));
  }
  void differs(const char* rule, const Probe& probe, std::string message) {
    Finding finding = verify_finding(rule, std::move(message));
    finding.provider = probe.note.provider;
    finding.name = probe.note.name;
    finding.site = probe.site.value;
    finding.evidence = probe.evidence;
    out_.push_back(std::move(finding));
  }

  // Each record is at its place and says what it said.
  bool compare_records(const LegacyScan& now) {
    if (now.section == nullptr || now.section->index != old_.section->index ||
        now.section->addr != old_.section->addr || now.section->offset != old_.section->offset ||
        now.records.size() != old_.records.size()) {
      differs("verify-record", "the records are not where they were");
      return false;
    }
    for (std::size_t i = 0; i < now.records.size(); ++i) {
      const LegacyRecord& a = old_.records[i];
      const LegacyRecord& b = now.records[i];
      const auto same_word = [](const LegacyWord& x, const LegacyWord& y) {
        return x.offset == y.offset && x.value == y.value;
      };
      const bool same =
          a.form == b.form && a.offset == b.offset && a.end == b.end && a.provider == b.provider &&
          a.name == b.name && a.operands == b.operands && a.count == b.count &&
          a.location == b.location && a.semaphore == b.semaphore && a.unresolved == b.unresolved &&
          std::ranges::equal(a.words, b.words, same_word) && (b.self_relative || !a.self_relative);
      if (!same) {
        differs("verify-record", fmt::format(".probes+{:#x}: the record of {} says something else",
                                             a.offset, a.name));
        return false;
      }
      if (b.self_relative != a.self_relative) allow_record(b);
    }
    return true;
  }

  void allow_record(const LegacyRecord& record) {
    allow(record.offset, 4);
    for (const LegacyWord& word : record.words) {
      allow(word.offset, before_.header().word());
      words_.insert(old_.section->addr.value + word.offset);
    }
  }
  void allow(std::uint64_t offset, std::uint64_t size) {
    elsewhere_.bytes.emplace_back(FileOffset{old_.section->offset.value + offset}, Size{size});
  }

  // Each note is of a record and stands where its probe is; each record whose code is in the file
  // and that says where has one.
  void compare_notes() {
    const LegacyProbes old = read_legacy(before_);
    // With the counter that the record says, or the one that the file proves.
    const std::vector<VirtAddr> counters = proven_counters(before_, old.file);
    std::map<SeenNote, std::vector<std::size_t>> known;
    std::map<VirtAddr, std::size_t> call_at;
    std::vector<bool> found(old.file.probes.size());
    for (std::size_t i = 0; i < old.file.probes.size(); ++i) {
      Probe probe = old.file.probes[i];
      if (old_.records[old.record[i]].is_call()) {
        counters_[probe.site] = {probe.semaphore, counters[i]};
        call_at.emplace(probe.site, i);
        continue;
      }
      known[seen_note(probe)].push_back(i);
      if (counters[i] == probe.semaphore) continue;
      probe.semaphore = counters[i];
      known[seen_note(probe)].push_back(i);
    }
    std::vector<const Probe*> calls;
    std::size_t last = 0;  // notes stand in the order of the records
    for (const Probe& probe : now_.probes) {
      const std::vector<std::size_t>& same = known[seen_note(probe)];
      const auto first = std::ranges::find_if(same, [&](std::size_t i) { return !found[i]; });
      const auto call = call_at.find(probe.site);
      std::size_t place = last;
      if (first != same.end()) {
        found[*first] = true;
        place = *first;
      } else {
        calls.push_back(&probe);
        if (call != call_at.end()) place = call->second;
      }
      if (place < last) differs("verify-probe-added", probe, "the notes are in another order");
      last = place;
      const bool on_nop = probe.facts.nop.kind == NopKind::nop;
      if (probe.verdict != Verdict::live && !(probe.verdict == Verdict::ambiguous && on_nop)) {
        differs("verify-probe-added", probe,
                fmt::format("the new note is {}", to_string(probe.verdict)));
      }
    }
    for (std::size_t i = 0; i < old.file.probes.size(); ++i) {
      const Probe& probe = old.file.probes[i];
      const LegacyRecord& record = old_.records[old.record[i]];
      const bool said = record.form != LegacyForm::uprobe2 ||
                        note_arguments(record, before_.header()).has_value();
      if (record.is_call() || probe.verdict != Verdict::live || !said) continue;
      if (!found[i]) {
        differs("verify-probe-lost", probe, "the record's probe has no note in the result");
      }
    }
    compare_calls(calls);
  }

  // A note that no record with a place has must stand on a nop that was a call of the header's.
  void compare_calls(const std::vector<const Probe*>& probes) {
    if (probes.empty()) return;
    std::vector<VirtAddr> sites;
    for (const Probe* probe : probes) sites.push_back(probe->site);
    std::ranges::sort(sites);
    const auto flows = FlowReader::open(before_, sites);
    const SyscallTargets targets(before_);
    std::optional<TrueBranches> branches;
    if (flows) branches.emplace(before_, flows->functions());
    const auto ranges = CodeRanges::open(before_);
    std::optional<Callees> callees;
    if (ranges) callees.emplace(before_, *ranges);
    std::map<VirtAddr, std::string> whys;
    for (std::size_t i = 0; flows && ranges && i < sites.size();) {
      auto flow = flows->function_of(sites[i]);
      if (!flow || !flow->complete) {
        whys[sites[i++]] = "its function is not understood";
        continue;
      }
      branches->keep(*flow);
      const ConstantRegisters registers(*flow);
      do {
        whys[sites[i]] = why_no_call(*flow, registers, targets, sites[i], *ranges, *callees);
        ++i;
      } while (i < sites.size() && sites[i] < flow->end());
    }
    for (const Probe* probe : probes) {
      const auto found = whys.find(probe->site);
      std::string why = found == whys.end() ? "the code cannot be read" : found->second;
      if (why.empty()) why = why_other_probe(*probe);
      if (!why.empty()) differs("verify-probe-added", *probe, "the note is of no record: " + why);
    }
  }

  // The call at the site did nothing but hit the probe, or "why not"; keeps what it passed.
  std::string why_no_call(const FunctionFlow& flow, const ConstantRegisters& registers,
                          const SyscallTargets& targets, VirtAddr site, const CodeRanges& ranges,
                          Callees& callees) {
    const CodeInstruction* call = flow.at(site);
    const std::uint64_t size = call == nullptr ? 0 : legacy_call_size(*call);
    const bool calls = size != 0 && (call->target ? targets.has(*call->target)
                                                  : targets.has_slot(*call->rip_target));
    if (!calls) return "there was no call of syscall()";
    if (flow.target_between(site, call->end())) return "control may arrive in the call";
    const ByteView now = after_.bytes_at(site, Size{size});
    const auto equal = [](std::byte a, std::uint8_t b) { return std::to_integer<int>(a) == b; };
    if (!std::ranges::equal(now, std::span(kNops).first(static_cast<std::size_t>(size)), equal))
      return "there are no nops of the call's size";
    const auto at = static_cast<std::size_t>(call - flow.code.data());
    const auto number = registers.before(at, kRdi), magic = registers.before(at, kRdx),
               name = registers.before(at, kRsi);
    if (!number || !magic || !name || !is_call_number(*number))
      return "what it passed is not known";
    const auto form = form_of_magic(*magic);
    if (!form) return "it passed none of the headers' numbers";
    if (result_used(flow, at, ranges, callees)) return "its result may be used";
    const std::string_view text = as_text(before_.bytes_at(VirtAddr{*name}, Size{kLongestName}));
    const auto end = text.find('\0');
    if (end == std::string_view::npos) return "it passed no name";
    passed_[site] = {*form, std::string(text.substr(0, end))};
    if (const auto offset = before_.offset_of(site)) {
      elsewhere_.bytes.emplace_back(*offset, Size{size});
    }
    return "";
  }

  // The records of the name and form all say what the note says.
  std::string why_other_probe(const Probe& probe) const {
    const auto& [form, name] = passed_.at(probe.site);
    bool any = false;
    for (const LegacyRecord& record : old_.records) {
      if (record.form != form || record.name != name) continue;
      any = true;
      const std::string_view provider =
          record.provider.empty() ? kLegacyProvider : std::string_view(record.provider);
      const auto known = counters_.find(probe.site);
      const auto [said, proven] =
          known == counters_.end() ? std::pair<VirtAddr, VirtAddr>{} : known->second;
      const bool counter = probe.semaphore == said || probe.semaphore == proven;
      if (probe.note.name != name || probe.note.provider != provider || !counter ||
          probe.note.arguments != call_arguments(record.count)) {
        return "the record says something else";
      }
    }
    return any ? "" : "no record has the name that the call passed";
  }

  // Flags and sizes of sections as the result has them: what is left to compare is any rewrite's.
  void compare_rest() {
    Plan headers;
    const bool is64 = before_.header().is64;
    const auto put = [&](const Section& section, std::uint64_t field, std::uint64_t value) {
      Bytes bytes(before_.header().word());
      store_uint(bytes, 0, before_.header().word(), before_.header().order, value);
      const FileOffset at{section.header_offset.value + field};
      elsewhere_.bytes.emplace_back(at, Size{bytes.size()});
      const auto a = before_.source().slice(at, Size{bytes.size()}, "a header");
      const auto b = after_.source().slice(at, Size{bytes.size()}, "a header");
      if (!a || !b || !std::ranges::equal(*a, *b)) {
        differs("verify-section", "the old section headers are not kept");
      }
      return headers.replace(before_.source(), at, std::move(bytes), "").has_value();
    };
    bool done = true;
    for (const auto& [index, size] : sizes_) {
      done = done && put(*before_.section_at(index), is64 ? 32 : 20, size.value);
    }
    const Section& section = *old_.section;
    const Section* now = after_.section_at(section.index);
    if (now != nullptr && now->flags == (section.flags & ~SHF_WRITE) &&
        now->flags != section.flags) {
      if (counters_in(section)) differs("verify-section", ".probes holds counters");
      done = done && put(section, 8, now->flags);
    }
    const auto source = planned_source(before_.source(), headers);
    const auto expected = done ? ElfFile::open(source) : fail(ErrorCode::internal, "", "headers");
    if (!expected) return differs("verify-section", "the section headers cannot be compared");
    CompareOptions options = options_;
    options.command = RewriteCommand::fix;
    options.elsewhere = &elsewhere_;
    std::ranges::move(compare(*expected, after_, options), std::back_inserter(out_));
  }

  [[nodiscard]] bool counters_in(const Section& section) const {
    return std::ranges::any_of(now_.probes, [&](const Probe& probe) {
      return probe.semaphore.value != 0 && section.contains(probe.semaphore);
    });
  }

  const ElfFile& before_;
  const ElfFile& after_;
  const CompareOptions& options_;
  ProbeFile now_;
  LegacyScan old_;
  std::set<std::uint64_t> words_;  // addresses of words that no relocation writes any more
  std::vector<std::pair<std::uint32_t, Size>> sizes_;
  std::map<VirtAddr, std::pair<LegacyForm, std::string>> passed_;  // by call
  // By call: the counter that the record says or a symbol names, and the one that is proven.
  std::map<VirtAddr, std::pair<VirtAddr, VirtAddr>> counters_;
  ComparedElsewhere elsewhere_;
  std::vector<Finding> out_;
};

}  // namespace

bool is_upgraded(const ElfFile& before, const ElfFile& after) {
  return std::ranges::none_of(before.sections(), holds_notes) &&
         std::ranges::any_of(after.sections(), holds_notes) && !scan_legacy(before).records.empty();
}

std::vector<Finding> compare_upgrade(const ElfFile& before, const ElfFile& after,
                                     const CompareOptions& options) {
  return UpgradeComparer(before, after, options).run();
}

}  // namespace reprobe
