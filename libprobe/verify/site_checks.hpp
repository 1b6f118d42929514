// Does code of the result check a probe's site as the original checked the counter? Read from the
// decoded instructions alone.
#pragma once

#include <optional>

#include "libprobe/code/decoder.hpp"
#include "libprobe/elf/file.hpp"
#include "libprobe/rewrite/guards/uses.hpp"

namespace reprobe {

class SiteChecks {
 public:
  SiteChecks(const ElfFile& after, const Decoder& decoder) : after_(after), decoder_(decoder) {}

  // Bytes of the instructions at `now` that stand for the use, with the counter it looked at;
  // nothing where they do something else.
  [[nodiscard]] std::optional<Size> size(const GuardUse& use, const GuardCounter& counter,
                                         VirtAddr now) const;

 private:
  [[nodiscard]] std::optional<CodeInstruction> decode(VirtAddr at) const;
  [[nodiscard]] bool compares(const CodeInstruction& code, const GuardUse& use,
                              const GuardCounter& counter) const;
  [[nodiscard]] std::optional<VirtAddr> comparisons(const GuardUse& use,
                                                    const GuardCounter& counter,
                                                    const CodeInstruction& first) const;
  [[nodiscard]] std::optional<Size> compare_size(const GuardUse& use, const GuardCounter& counter,
                                                 const CodeInstruction& first) const;
  [[nodiscard]] std::optional<Size> below_or_equal_size(VirtAddr begin, VirtAddr compared) const;
  [[nodiscard]] static bool sets_register(const CodeInstruction& set,
                                          const CodeInstruction& extend,
                                          const CodeInstruction& old);
  [[nodiscard]] std::optional<Size> load_size_without_flags(const GuardUse& use,
                                                            const GuardCounter& counter,
                                                            const CodeInstruction& first) const;
  [[nodiscard]] std::optional<Size> below_size(const GuardUse& use, const GuardCounter& counter,
                                               const CodeInstruction& first) const;
  [[nodiscard]] std::optional<Size> load_size(const GuardUse& use, const GuardCounter& counter,
                                              const CodeInstruction& first) const;
  [[nodiscard]] std::optional<Size> merge_size(const GuardUse& use, const GuardCounter& counter,
                                               const CodeInstruction& first) const;

  const ElfFile& after_;
  const Decoder& decoder_;
};

}  // namespace reprobe
