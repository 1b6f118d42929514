// What each tracer makes of each probe: does it list it, attach it at the right byte, raise its
// semaphore, read its arguments. One small file of rules per consumer, over the same facts.
// Sources of the rules: docs/consumers.md and the consumers' own code, cited at each rule.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libprobe/probes/probe.hpp"

namespace reprobe {

// Where a consumer fails a probe.
enum class Step {
  list,       // it does not find the note
  attach,     // it refuses the probe, or puts it on another byte
  semaphore,  // it attaches, but the program's counter does not rise
  argument,   // it cannot read an argument (libbpf and LTTng then refuse the probe)
  dangling,   // it lists or attaches a note whose code is not in the file
};

struct ConsumerFailure {
  std::size_t probe{};  // index in ProbeFile::probes
  Step what{Step::list};
  std::string_view reason;  // stable word; reason_text() says it in a sentence
  std::string detail;       // what is special about this probe; may be empty
  std::size_t argument{};   // number of the first unreadable one, from 1; 0: not about arguments
};

struct ConsumerVerdict {
  std::string_view consumer;
  std::size_t ok{};        // probes (live or ambiguous) that are traced fully
  std::size_t fail{};      // probes with a failure, dangling ones that are listed or attached too
  std::size_t listed{};    // notes that the consumer finds, dangling ones too
  std::size_t dangling{};  // dangling notes that it lists or attaches
  // By probe, then by step. No more than kFailuresKept of one reason; `left_out` counts the rest.
  std::vector<ConsumerFailure> failures;
  std::size_t left_out{};
};

inline constexpr std::size_t kFailuresKept = 1000;

// "libbpf", "libbpf-1.1", "bcc", "bpftrace-0.17", "bpftrace", "gdb", "systemtap", "perf", "lttng",
// "bolt", "otel", "parca", "tetragon", "gadget": the order of all output.
[[nodiscard]] std::span<const std::string_view> consumer_names();

// One verdict for each of `names` (of consumer_names(); empty: all), in that list's order. Probes
// with a false in `selected` (empty: all are selected) are not counted, but have their effect on
// others. Empty for a relocatable object, which nobody traces. Probes whose verdict is `unknown`
// are not counted: what a tracer does with them is decided by the file that has the code.
[[nodiscard]] std::vector<ConsumerVerdict> consumer_verdicts(
    const ElfFile& file, const ProbeFile& probes, std::span<const std::string> names = {},
    const std::vector<bool>& selected = {});

// The reason in a sentence; "" for a word that is none.
[[nodiscard]] std::string_view reason_text(std::string_view reason);
// Is the reason a limit of the consumer, which no repair of the file can lift?
[[nodiscard]] bool reason_is_limit(std::string_view reason);

// "list", "attach", "semaphore", "argument", "dangling".
[[nodiscard]] const char* to_string(Step step);

}  // namespace reprobe
