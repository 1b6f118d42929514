// semaphore-relro-page: the kernel raises a counter in the first writable mapping of its page of
// the file. Where two segments share that page (lld and mold pack the file: RELRO's last bytes,
// then the data), the second one's bytes go to pages of the file that nothing else maps. Addresses
// stay, so that no reference changes; the file grows by the segment.
#pragma once

#include "libprobe/elf/file.hpp"
#include "libprobe/rewrite/fix.hpp"

namespace reprobe {

// Looks at the output of the plan so far, and adds to the plan, its repairs and refusals. Errors:
// internal.
[[nodiscard]] Result<void> give_counters_pages(FixPlan& fix, const ElfFile& file);

}  // namespace reprobe
