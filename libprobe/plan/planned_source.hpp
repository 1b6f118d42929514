// The output of a plan, readable before it is written and without a copy of the whole file.
#pragma once

#include <memory>

#include "libprobe/plan/plan.hpp"

namespace reprobe {

// `input` and `plan` must outlive it. Only slices that an edit changes are copied; they live as
// long as the source.
[[nodiscard]] std::shared_ptr<const ByteSource> planned_source(const ByteSource& input,
                                                               const Plan& plan);

}  // namespace reprobe
