// A uprobe at an address of this program, whose hits a BPF program counts: what a tracer's count()
// costs, without a tracer. perf_event_open(2), bpf(2).
#pragma once

#include <cstdint>

#include "libprobe/error.hpp"

namespace reprobe {

class UprobeCount {
 public:
  // `site` is in this program's code. Fails where the kernel has no uprobes or the caller no right to
  // set one (CAP_BPF and CAP_PERFMON); the error says which call was denied.
  [[nodiscard]] static Result<UprobeCount> attach(const void* site);
  UprobeCount(UprobeCount&& other) noexcept;
  UprobeCount& operator=(UprobeCount&&) = delete;
  ~UprobeCount();

  [[nodiscard]] Result<std::uint64_t> hits() const;

 private:
  UprobeCount() = default;

  int map_{-1}, program_{-1}, event_{-1};
};

}  // namespace reprobe
