// Does code of the result check a probe's site as the original checked the counter? Read from the
// instructions alone, as Zydis reads them.
#pragma once

#include <optional>

#include "libprobe/elf/file.hpp"
#include "libprobe/verify/counter_uses.hpp"

namespace reprobe {

class SiteChecks {
 public:
  explicit SiteChecks(const ElfFile& after) : after_(after) {}

  // Bytes of the instructions at `now` that stand for the use, with the counter it looked at;
  // nothing where they do something else.
  [[nodiscard]] std::optional<Size> size(const CounterUse& use, const CheckedCounter& counter,
                                         VirtAddr now) const;

 private:
  [[nodiscard]] std::optional<X86Reading> read(VirtAddr at) const { return read_x86(after_, at); }
  [[nodiscard]] std::optional<VirtAddr> comparisons(const CounterUse& use,
                                                    const CheckedCounter& counter,
                                                    const X86Reading& first) const;
  [[nodiscard]] std::optional<Size> below_or_equal_size(VirtAddr begin, VirtAddr compared) const;
  [[nodiscard]] std::optional<Size> load_size_without_flags(const CounterUse& use,
                                                            const CheckedCounter& counter,
                                                            const X86Reading& first) const;
  [[nodiscard]] std::optional<Size> below_size(const CounterUse& use, const CheckedCounter& counter,
                                               const X86Reading& first) const;
  [[nodiscard]] std::optional<Size> load_size(const CounterUse& use, const CheckedCounter& counter,
                                              const X86Reading& first) const;
  [[nodiscard]] std::optional<Size> merge_size(const CounterUse& use, const CheckedCounter& counter,
                                               const X86Reading& first) const;

  const ElfFile& after_;
};

}  // namespace reprobe
