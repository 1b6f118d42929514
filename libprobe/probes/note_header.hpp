// Which header or library wrote a probe's note, where the file tells.
#pragma once

#include <string_view>
#include <vector>

#include "libprobe/probes/probe.hpp"

namespace reprobe {

// One for each probe; "" where nothing tells. Told by the nops at the site, by the name of the
// probe's counter, and by the language of its function:
//
//   sys/sdt.h                PROVIDER_NAME_semaphore (SystemTap's, and what dtrace -h writes)
//   usdt.h                   __usdt_sema_GROUP__NAME (libbpf/usdt)
//   usdt.h 2026-02           the site is nop,nop5 (2026-02 to 2026-05)
//   usdt.h 2026-07           the site is nop,nop10 (from 2026-07)
//   folly                    folly_sdt_semaphore_PROVIDER_NAME (folly/tracing/StaticTracepoint.h)
//   Rust                     a function of Rust: the crates probe and usdt, or a macro of its own
[[nodiscard]] std::vector<std::string_view> note_headers(const ElfFile& file,
                                                         const ProbeFile& probes);

}  // namespace reprobe
