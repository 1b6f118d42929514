#include "libprobe/tracers/consumers.hpp"

#include <algorithm>
#include <array>

#include "libprobe/tracers/facts.hpp"
#include "libprobe/tracers/report.hpp"
#include "libprobe/tracers/rules.hpp"

namespace reprobe {
namespace {

using consumers::Facts;
using consumers::Report;

struct Consumer {
  std::string_view name;
  consumers::Rules* rules;
};

constexpr std::array kConsumers{Consumer{"libbpf", consumers::libbpf},
                                Consumer{"libbpf-1.1", consumers::libbpf_1_1},
                                Consumer{"bcc", consumers::bcc},
                                Consumer{"bpftrace-0.17", consumers::bpftrace_0_17},
                                Consumer{"bpftrace", consumers::bpftrace},
                                Consumer{"gdb", consumers::gdb},
                                Consumer{"systemtap", consumers::systemtap},
                                Consumer{"perf", consumers::perf},
                                Consumer{"lttng", consumers::lttng},
                                Consumer{"bolt", consumers::bolt},
                                Consumer{"otel", consumers::otel},
                                Consumer{"parca", consumers::parca},
                                Consumer{"tetragon", consumers::tetragon},
                                Consumer{"gadget", consumers::gadget}};

constexpr auto kNames = [] {
  std::array<std::string_view, kConsumers.size()> names;
  std::ranges::transform(kConsumers, names.begin(), &Consumer::name);
  return names;
}();

}  // namespace

std::span<const std::string_view> consumer_names() { return kNames; }

std::vector<ConsumerVerdict> consumer_verdicts(const ElfFile& file, const ProbeFile& probes,
                                               std::span<const std::string> names,
                                               const std::vector<bool>& selected) {
  std::vector<ConsumerVerdict> verdicts;
  if (probes.probes.empty() || file.header().type == ET_REL) return verdicts;
  const Facts facts(file, probes);
  for (const Consumer& consumer : kConsumers) {
    if (!names.empty() && std::ranges::find(names, consumer.name) == names.end()) continue;
    Report report(facts, consumer.name, selected);
    consumer.rules(facts, report);
    verdicts.push_back(std::move(report).take());
  }
  return verdicts;
}

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
