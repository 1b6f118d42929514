#include "libprobe/audit/consumers/consumers.hpp"

#include <algorithm>
#include <array>

#include "libprobe/audit/consumers/facts.hpp"
#include "libprobe/audit/consumers/report.hpp"

namespace reprobe {
namespace {

using consumers::Facts;
using consumers::Report;

constexpr std::array<std::string_view, 10> kNames{
    "libbpf", "libbpf-1.1", "bcc",  "bpftrace-0.17", "bpftrace",
    "gdb",    "systemtap",  "perf", "lttng",         "bolt"};

}  // namespace

std::span<const std::string_view> consumer_names() { return kNames; }

std::vector<ConsumerVerdict> consumer_verdicts(const ElfFile& file, const ProbeFile& probes,
                                               std::span<const std::string> names,
                                               const std::vector<bool>& selected) {
  std::vector<ConsumerVerdict> verdicts;
  if (probes.probes.empty() || file.header().type == ET_REL) return verdicts;
  const Facts facts(file, probes);
  for (const std::string_view name : kNames) {
    if (!names.empty() && std::ranges::find(names, name) == names.end()) continue;
    verdicts.push_back(Report(facts, name, selected).take());
  }
  return verdicts;
}

std::string_view reason_text(std::string_view reason) { return reason; }
bool reason_is_limit(std::string_view) { return false; }

const char* to_string(Step step) {
  switch (step) {
    case Step::list:
      return "list";
    case Step::attach:
      return "attach";
    case Step::semaphore:
      return "semaphore";
    case Step::argument:
      return "argument";
    case Step::dangling:
      break;
  }
  return "dangling";
}

}  // namespace reprobe
