// How audit shows what each tracer makes of a file's probes.
#pragma once

#include <vector>

#include "libprobe/tracers/consumers.hpp"
#include "tool/json.hpp"
#include "tool/terminal.hpp"

namespace reprobe {

// The value of "consumers" in reprobe.audit/1: an object with a key per consumer.
[[nodiscard]] Json consumers_json(const std::vector<ConsumerVerdict>& verdicts,
                                  const ProbeFile& probes);

// Does any of them fail a probe for something that is the file's, and no limit of the consumer?
[[nodiscard]] bool any_fault(const std::vector<ConsumerVerdict>& verdicts);
// For anything at all?
[[nodiscard]] bool any_failure(const std::vector<ConsumerVerdict>& verdicts);

// A table with a row per probe that fails somewhere (with `limits`, for a consumer's own limits,
// too), then the reasons. Beyond a dozen, rows are only counted: the JSON has them all.
void print_consumers(const std::vector<ConsumerVerdict>& verdicts, const ProbeFile& probes,
                     bool limits, const Terminal& terminal);

}  // namespace reprobe
