// Rules about counters: where a counter lies decides whether the kernel can raise it, and where
// its tracer looks. What each rule says was measured with Linux 6.18 (uprobe events with a
// reference counter, bpftrace 0.17), on programs started under the tracer and on running ones.
#include <fmt/format.h>

#include <array>
#include <functional>
#include <unordered_set>

#include "libprobe/audit/rules_parts.hpp"
#include "libprobe/probes/semaphore.hpp"

namespace reprobe::rules {
namespace {

// A wanted probe and its counter.
struct Counter {
  const Probe* probe{};
  const SemaphoreFacts* facts{};
};

std::string stands_where(const SemaphoreFacts& facts) {
  if (facts.section != nullptr && facts.section->index != 0) {
    constexpr std::size_t kShort = 40;
    return "in " + facts.section->name.substr(0, kShort);
  }
  return facts.segment != nullptr ? "in no section" : "in no segment";
}

// One rule: the first that applies to a counter is reported, so that a counter has one cause.
struct CounterRule {
  std::string_view name;
  Severity severity;
  bool (*applies)(const SemaphoreFacts&);
  const char* message;
  std::string (*detail)(const SemaphoreFacts&);
  const char* hint;
};

std::string no_detail(const SemaphoreFacts&) { return {}; }

std::string section_detail(const SemaphoreFacts& facts) {
  return facts.in_probes ? "the section headers put .probes before the code: bcc does not see it"
                         : "it stands " + stands_where(facts);
}

std::string dangling_detail(const SemaphoreFacts& facts) {
  if (facts.segment == nullptr) {
    return "libbpf refuses the probe: the address is in no segment";
  }
  return facts.executable ? "libbpf refuses the probe: the segment is executable"
                          : "it stands in no section, and nobody may write there";
}

std::string page_detail(const SemaphoreFacts& facts) {
  if (facts.mapped_before == nullptr) {
    return "PT_GNU_RELRO makes it read-only: it rises only in a program that was started traced";
  }
  return fmt::format(
      "segments {} and {} map the same page of the file, and the kernel raises the first one's "
      "copy; only in a program that runs already, and if RELRO covers the first, the right one",
      facts.mapped_before->index, facts.segment->index);
}

constexpr std::array kCounterRules{
    CounterRule{"semaphore-copied", Severity::error,
                [](const SemaphoreFacts& f) { return f.copied; },
                "a copy relocation moved the counter here from another module: whoever has the "
                "probe reads this copy, tracers of the other file raise the other",
                no_detail,
                "define PROVIDER_NAME_semaphore in the module that has the probe, with hidden "
                "visibility"},
    CounterRule{"semaphore-dangling", Severity::error, points_nowhere,
                "the note's counter is not in the file: its section was dropped by the linker",
                dangling_detail,
                "reprobe fix clears the field, or takes the symbol PROVIDER_NAME_semaphore"},
    CounterRule{"semaphore-odd", Severity::error, [](const SemaphoreFacts& f) { return !f.even; },
                "the counter's address is odd: the kernel refuses the probe (EINVAL)", no_detail,
                "align PROVIDER_NAME_semaphore to 2"},
    CounterRule{
        "semaphore-nobits", Severity::error, [](const SemaphoreFacts& f) { return !f.offset; },
        "the counter has no bytes in the file (.bss): the kernel cannot raise it", no_detail,
        "define PROVIDER_NAME_semaphore with __attribute__((section(\".probes\")))"},
    CounterRule{"semaphore-readonly", Severity::error,
                [](const SemaphoreFacts& f) { return !f.writable; },
                "the counter's segment is not writable: the kernel never raises it",
                [](const SemaphoreFacts& f) { return "it stands " + stands_where(f); },
                "define PROVIDER_NAME_semaphore as a variable that is not const"},
    CounterRule{"semaphore-executable", Severity::error,
                [](const SemaphoreFacts& f) { return f.executable; },
                "the counter's segment is executable: libbpf refuses the probe (ESRCH)", no_detail,
                "link without -N (--omagic) and without a script that merges code and data"},
    CounterRule{
        "semaphore-relro-page", Severity::error, [](const SemaphoreFacts& f) { return f.in_relro; },
        "the counter shares its page with what the dynamic linker makes read-only", page_detail,
        "link with -Wl,-z,norelro, or reprobe guards --to site: the checks look at the site then"},
    CounterRule{
        "semaphore-relro-page", Severity::error,
        [](const SemaphoreFacts& f) { return f.mapped_before != nullptr; },
        "the counter shares its page with what the dynamic linker makes read-only", page_detail,
        "reprobe fix gives the counter's segment pages of its own; or link with "
        "-Wl,-z,separate-loadable-segments (lld, mold; in Rust -C link-arg=...), or reprobe guards "
        "--to site: the checks look at the site then"},
    CounterRule{"semaphore-section", Severity::error,
                [](const SemaphoreFacts& f) { return !f.bcc_finds_it; },
                "bcc, and bpftrace before 0.25, do not raise the counter: they look for it in the "
                "section .probes",
                section_detail,
                "reprobe fix makes .probes cover it; or define it with "
                "__attribute__((section(\".probes\")))"},
};

// One finding for all counters that a rule hits.
void report(const CounterRule& rule, const std::vector<Counter>& hit, std::vector<Finding>& out) {
  std::unordered_set<std::uint64_t> addresses;
  std::vector<const Probe*> probes;
  for (const Counter& counter : hit) {
    addresses.insert(counter.facts->address.value);
    probes.push_back(counter.probe);
  }
  const Counter& first = hit.front();
  Finding finding = addresses.size() == 1
                        ? about(*first.probe, rule.name, rule.severity, rule.message)
                        : about_file(rule.name, rule.severity, rule.message);
  std::string where =
      fmt::format("counter of {} at {:#x}", shown_name(*first.probe), first.facts->address.value);
  const std::string detail = rule.detail(*first.facts);
  finding.evidence.push_back(detail.empty() ? where : where + ": " + detail);
  if (addresses.size() > 1) {
    finding.evidence.push_back(
        fmt::format("{}: {}", plural(addresses.size(), "counter"), shown_names(probes)));
  }
  finding.hint = rule.hint;
  out.push_back(std::move(finding));
}

void undefined(const std::vector<Counter>& missing, std::vector<Finding>& out) {
  std::unordered_set<std::string> seen;
  for (const Counter& counter : missing) {
    if (!seen.insert(counter.probe->note.provider + ":" + counter.probe->note.name).second) {
      continue;
    }
    const bool here = counter.facts->symbol.has_value() || counter.facts->symbol_ambiguous;
    Finding finding =
        about(*counter.probe, "semaphore-undefined", Severity::error,
              here ? "the note names no counter, but the file defines one: no tracer raises it"
                   : "the note names no counter: the probe's is in another module, and no tracer "
                     "finds it");
    if (counter.facts->symbol) {
      finding.evidence.push_back(fmt::format("{}_{}_semaphore is at {:#x}",
                                             counter.probe->note.provider, counter.probe->note.name,
                                             counter.facts->symbol->value));
      finding.hint = "reprobe fix takes the address from the symbol";
    } else {
      finding.evidence.push_back(here ? "several symbols PROVIDER_NAME_semaphore differ"
                                      : "the symbol PROVIDER_NAME_semaphore is undefined");
      finding.hint = "define PROVIDER_NAME_semaphore in the module that has the probe";
    }
    out.push_back(std::move(finding));
  }
}

}  // namespace

void add_semaphore_findings(const ElfFile& file, const ProbeFile& probes,
                            std::vector<Finding>& out) {
  // A debug file's sections have no bytes, and an object's have no addresses yet.
  if (file.header().type == ET_REL || probes.debug_file) return;
  const std::vector<SemaphoreFacts> all = read_semaphores(file, probes);
  std::array<std::vector<Counter>, kCounterRules.size()> hits;
  std::vector<Counter> missing;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!wanted(probes.probes[i])) continue;
    const Counter counter{&probes.probes[i], &all[i]};
    if (all[i].address.value == 0) {
      if (all[i].symbol || all[i].symbol_ambiguous || all[i].symbol_undefined) {
        missing.push_back(counter);
      }
      continue;
    }
    for (std::size_t r = 0; r < kCounterRules.size(); ++r) {
      if (!kCounterRules[r].applies(all[i])) continue;
      hits[r].push_back(counter);
      break;
    }
  }
  for (std::size_t r = 0; r < kCounterRules.size(); ++r) {
    if (!hits[r].empty()) report(kCounterRules[r], hits[r], out);
  }
  undefined(missing, out);
}

}  // namespace reprobe::rules
