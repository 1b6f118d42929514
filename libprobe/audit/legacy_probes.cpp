#include "libprobe/audit/legacy_probes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "libprobe/audit/facts.hpp"
#include "libprobe/audit/rules_parts.hpp"
#include "libprobe/audit/verdict.hpp"

namespace reprobe {
namespace {

Probe probe_of(const ElfFile& file, const Section& section, const LegacyRecord& record,
               std::string arguments) {
  Probe probe;
  Note& note = probe.note;
  note.provider = record.provider.empty() ? std::string(kLegacyProvider) : record.provider;
  note.name = record.name;
  note.arguments = std::move(arguments);
  note.location = record.location;
  note.semaphore = record.semaphore;
  note.section = section.index;
  note.offset = record.offset;
  note.size = record.end - record.offset;
  note.file_offset = FileOffset{section.offset.value + record.offset};
  note.location_unresolved = record.unresolved;
  probe.site = record.location;
  probe.semaphore = record.semaphore;
  probe.legacy = to_string(record.form);
  probe.arguments = parse_arguments(note.arguments, file.header().machine);
  return probe;
}

class RecordProbes {
 public:
  RecordProbes(const ElfFile& file, LegacyProbes& out) : file_(file), out_(out) {}

  void run() {
    read_counters();
    const auto& records = out_.scan.records;
    std::multimap<std::size_t, const LegacyCall*> calls;
    for (const LegacyCall& call : out_.calls.calls) calls.emplace(call.record, &call);
    for (std::size_t i = 0; i < records.size(); ++i) {
      const LegacyRecord& record = records[i];
      if (!record.is_call()) {
        add(i, nop_sites_, nop_records_, note_arguments(record, file_.header()).value_or(""));
        continue;
      }
      const auto [first, last] = calls.equal_range(i);
      for (auto call = first; call != last; ++call) add_call(i, *call->second);
      // A record that stands for the calls of all records of its name.
      if (first == last && !is_named_elsewhere(calls, i)) {
        add(i, call_sites_, call_records_, "");
        call_sites_.probes.back().evidence = {"no call that passes its name was recognised"};
      }
    }
    gather_facts(file_, nop_sites_);
    judge(nop_sites_, file_.header());
    gather_facts(file_, call_sites_);
    merge();
  }

 private:
  void add(std::size_t record, ProbeFile& to, std::vector<std::size_t>& records,
           std::string arguments) {
    Probe probe =
        probe_of(file_, *out_.scan.section, out_.scan.records[record], std::move(arguments));
    if (probe.semaphore.value == 0 && out_.scan.records[record].provider.empty()) {
      const auto counter = counters_.find(probe.note.name);
      if (counter != counters_.end()) probe.semaphore = probe.note.semaphore = counter->second;
    }
    to.probes.push_back(std::move(probe));
    records.push_back(record);
  }

  // The forms 1 do not say where their counters are; SystemTap looks for the symbol.
  void read_counters() {
    constexpr std::string_view kEnd = "_semaphore";
    constexpr std::size_t kLongestName = 4096;
    for (const Section& table : file_.sections()) {
      if (!table.holds_symbols()) continue;
      const auto symbols = file_.symbol_table(table);
      if (!symbols) continue;
      for (std::uint32_t i = 1; i < symbols->size(); ++i) {
        const Symbol symbol = symbols->at(i);
        if (!symbol.in_section() || symbol.shndx != out_.scan.section->index) continue;
        const std::string_view name = symbols->name(symbol);
        if (!name.ends_with(kEnd) || name.size() > kLongestName) continue;
        counters_.emplace(name.substr(0, name.size() - kEnd.size()), symbol.value);
      }
    }
  }

  void add_call(std::size_t record, const LegacyCall& call) {
    add(record, call_sites_, call_records_, call.arguments);
    Probe& probe = call_sites_.probes.back();
    probe.site = probe.note.location = call.site;
    probe.verdict = Verdict::live;
    probe.evidence = {"a call of syscall() passes the probe's name and the header's number"};
  }

  [[nodiscard]] bool is_named_elsewhere(const std::multimap<std::size_t, const LegacyCall*>& calls,
                                        std::size_t i) {
    if (named_.empty()) {
      for (const auto& [record, call] : calls) {
        const LegacyRecord& named = out_.scan.records[record];
        named_.emplace(named.form, named.name);
      }
    }
    const LegacyRecord& record = out_.scan.records[i];
    return named_.contains({record.form, record.name});
  }

  // By record, and of one record by site.
  void merge() {
    std::vector<std::pair<std::size_t, Probe>> all;
    for (std::size_t i = 0; i < nop_records_.size(); ++i) {
      all.emplace_back(nop_records_[i], std::move(nop_sites_.probes[i]));
    }
    for (std::size_t i = 0; i < call_records_.size(); ++i) {
      all.emplace_back(call_records_[i], std::move(call_sites_.probes[i]));
    }
    std::ranges::stable_sort(
        all, {}, [](const auto& item) { return std::pair(item.first, item.second.site); });
    // Places among the nops only: calls share no instruction.
    ProbeFile& file = out_.file;
    file = std::move(nop_sites_);
    file.probes.clear();
    for (auto& [record, probe] : all) {
      probe.alias_count = 0;
      out_.record.push_back(record);
      file.probes.push_back(std::move(probe));
    }
  }

  const ElfFile& file_;
  LegacyProbes& out_;
  std::map<std::string, VirtAddr, std::less<>> counters_;  // by the probe's name
  ProbeFile nop_sites_, call_sites_;
  std::vector<std::size_t> nop_records_, call_records_;
  std::set<std::pair<LegacyForm, std::string>> named_;
};

Finding record_finding(const LegacyProbes& probes) {
  const auto& records = probes.scan.records;
  Finding finding = rules::about_file(
      "legacy-record", Severity::error,
      fmt::format("{} in the form of SystemTap up to 1.3: libbpf, bpftrace, bcc, gdb, perf and "
                  "readelf see none of them, SystemTap reads them",
                  rules::plural(records.size(), "probe record")));
  std::map<std::string_view, std::size_t> forms;
  for (const LegacyRecord& record : records) ++forms[to_string(record.form)];
  for (const auto& [form, count] : forms)
    finding.evidence.push_back(fmt::format("{}: {}", form, count));
  finding.note_offset = probes.scan.section->offset.value + records.front().offset;
  finding.hint = "reprobe fix writes notes for them";
  return finding;
}

Finding call_finding(const LegacyCallRefusal& refusal) {
  Finding finding;
  finding.rule = "legacy-call";
  finding.severity = Severity::note;
  finding.name = refusal.name;
  finding.site = refusal.site.value;
  finding.message =
      "a call of syscall() for a probe that is not recognised whole: it stays, and the "
      "program makes a system call for every hit";
  finding.evidence.push_back(refusal.reason);
  return finding;
}

}  // namespace

LegacyProbes read_legacy(const ElfFile& file) {
  LegacyProbes result;
  if (std::ranges::any_of(file.sections(), holds_notes)) return result;
  result.scan = scan_legacy(file);
  if (result.scan.records.empty()) return result;
  result.calls = find_legacy_calls(file, result.scan);
  RecordProbes(file, result).run();
  return result;
}

std::vector<Finding> audit_legacy(const LegacyProbes& probes) {
  std::vector<Finding> findings;
  if (probes.found()) findings.push_back(record_finding(probes));
  for (const Probe& probe : probes.file.probes) {
    const bool dangling = probe.verdict == Verdict::dangling;
    if (!dangling && probe.verdict != Verdict::ambiguous) continue;
    Finding finding =
        dangling ? rules::about(probe, "dangling", Severity::error,
                                "the record's code is not in the file")
                 : rules::about(probe, "ambiguous", Severity::warning,
                                "the record may point at its probe or, by accident, at another "
                                "instruction");
    finding.evidence = probe.evidence;
    findings.push_back(std::move(finding));
  }
  for (const LegacyCallRefusal& refusal : probes.calls.refused) {
    findings.push_back(call_finding(refusal));
  }
  findings.insert(findings.end(), probes.scan.findings.begin(), probes.scan.findings.end());
  return findings;
}

}  // namespace reprobe
