// Rules about the probes of one name together: limits that tracers have, and names they refuse.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_set>

#include "libprobe/audit/rules_parts.hpp"

namespace reprobe::rules {
namespace {

// libbpf: USDT_MAX_ARG_CNT in usdt.c; BPF_USDT_MAX_SPEC_CNT and BPF_USDT_MAX_IP_CNT in usdt.bpf.h.
constexpr std::size_t kLibbpfArguments = 12;
constexpr std::size_t kLibbpfSpecs = 256;
constexpr std::size_t kLibbpfSites = 4 * kLibbpfSpecs;

void argument_count(const Name& name, std::vector<Finding>& out) {
  const auto most = std::ranges::max_element(
      name, {}, [](const Probe* probe) { return probe->arguments.size(); });
  const std::size_t count = (*most)->arguments.size();
  if (count <= kLibbpfArguments) return;
  Finding finding = about(
      **most, "argument-count", Severity::warning,
      fmt::format("more than {} arguments: libbpf refuses the probe (E2BIG)", kLibbpfArguments));
  finding.evidence.push_back(plural(count, "argument"));
  finding.hint = "pass a pointer to a structure";
  out.push_back(std::move(finding));
}

void site_counts(const Name& name, const Kernels& kernels, std::vector<Finding>& out) {
  if (name.size() <= kLibbpfSpecs) return;
  std::unordered_set<std::string_view> specs;
  for (const Probe* probe : name) specs.insert(probe->note.arguments);
  if (specs.size() > kLibbpfSpecs) {
    Finding finding = about(
        *name.front(), "spec-count", Severity::warning,
        fmt::format("the sites read their arguments in more than {} ways: libbpf refuses the probe "
                    "(E2BIG) unless BPF_USDT_MAX_SPEC_CNT is raised",
                    kLibbpfSpecs));
    finding.evidence.push_back(fmt::format("{} of {} are different",
                                           plural(specs.size(), "argument string"),
                                           plural(name.size(), "site")));
    finding.hint = "put the probe into one function that is not inlined";
    out.push_back(std::move(finding));
  }
  if (name.size() <= kLibbpfSites || !lack_cookies(kernels)) return;
  Finding finding = about(
      *name.front(), "site-count", Severity::note,
      fmt::format("more than {} sites: without BPF cookies (before Linux 5.15) libbpf refuses the "
                  "probe unless BPF_USDT_MAX_IP_CNT is raised",
                  kLibbpfSites));
  finding.evidence.push_back(plural(name.size(), "site"));
  finding.hint = "put the probe into one function that is not inlined";
  out.push_back(std::move(finding));
}

void arguments_differ(const Name& name, std::vector<Finding>& out) {
  const Probe& first = *name.front();
  const auto other = std::ranges::find_if(
      name, [&](const Probe* p) { return p->arguments.size() != first.arguments.size(); });
  if (other == name.end()) return;
  Finding finding = about(first, "probe-arguments-differ", Severity::note,
                          "the sites of this probe have different numbers of arguments: bcc's "
                          "tplist 0.26 crashes, and a script sees some of them only");
  finding.evidence.push_back(fmt::format("{} at {:#x}, {} at {:#x}", first.arguments.size(),
                                         first.site.value, (*other)->arguments.size(),
                                         (*other)->site.value));
  finding.hint = "give a probe with other arguments another name";
  out.push_back(std::move(finding));
}

// Words that perf's event parser (parse-events.l) takes for something else than a name, so that
// `-e sdt_PROVIDER:NAME` is refused. Tried with perf 6.1.
constexpr auto kPerfWords = std::to_array<std::string_view>(
    {"cycles", "instructions", "branches", "faults", "cs", "migrations", "dummy", "duration_time",
     "user_time", "system_time",
     // The caches, their operations and results.
     "LLC", "L2", "l1d", "l1i", "dTLB", "iTLB", "branch", "bpu", "btb", "bpc", "node", "load",
     "loads", "read", "store", "stores", "write", "prefetch", "prefetches", "refs", "Reference",
     "ops", "access", "misses", "miss"});

// r and hexadecimal digits is a raw event; letters of modifiers are modifiers.
bool is_perf_word(std::string_view name) {
  constexpr std::string_view kHex = "0123456789abcdefABCDEF";
  constexpr std::string_view kModifiers = "ukhpPGHSDIWeb";
  if (std::ranges::find(kPerfWords, name) != kPerfWords.end()) return true;
  if (name.starts_with('r') && name.size() > 1 &&
      name.find_first_not_of(kHex, 1) == std::string_view::npos) {
    return true;
  }
  return name.find_first_not_of(kModifiers) == std::string_view::npos;
}

// perf's is_c_func_name().
bool is_identifier(std::string_view text) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  return std::ranges::all_of(text, fits) && (text.front() < '0' || text.front() > '9');
}

void perf_name(const Name& name, std::vector<Finding>& out) {
  const std::string& text = name.front()->note.name;
  if (!text.empty() &&
      (!is_identifier(text) || !is_identifier("_" + name.front()->note.provider))) {
    Finding finding = about(*name.front(), "probe-name-perf", Severity::warning,
                            "the name is no identifier of C: perf list and perf probe refuse every "
                            "probe of the file");
    finding.hint = "name provider and probe with letters, digits and _";
    out.push_back(std::move(finding));
    return;
  }
  if (text.empty() || !is_perf_word(text)) return;
  Finding finding =
      about(*name.front(), "probe-name-perf", Severity::note,
            "perf's event parser takes the probe's name for an event, an operation or "
            "a modifier and refuses it");
  finding.hint = "give the probe a longer name, as in PROVIDER:query_read";
  out.push_back(std::move(finding));
}

}  // namespace

void add_count_findings(const ProbeFile& probes, const Kernels& kernels,
                        std::vector<Finding>& out) {
  for (const Name& name : names_of(probes)) {
    argument_count(name, out);
    site_counts(name, kernels, out);
    arguments_differ(name, out);
    perf_name(name, out);
  }
}

}  // namespace reprobe::rules
