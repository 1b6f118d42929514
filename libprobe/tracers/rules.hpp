// The consumers, one function and one file each. Each reads the file as the consumer does and
// reports every probe that it fails.
#pragma once

#include "libprobe/tracers/arguments.hpp"
#include "libprobe/tracers/facts.hpp"
#include "libprobe/tracers/reading.hpp"
#include "libprobe/tracers/report.hpp"

namespace reprobe::consumers {

using Rules = void(const Facts& facts, Report& report);

Rules libbpf;         // 2026-07
Rules libbpf_1_1;     // Debian 12
Rules bcc;            // 2026-08
Rules bpftrace_0_17;  // until 0.24: with bcc's parser
Rules bpftrace;       // from 0.25: a listing of its own, and libbpf
Rules gdb;            // 13
Rules systemtap;      // 2026-08
Rules perf;           // 6.1
Rules lttng;          // lttng-tools 2.13, userspace probes
Rules bolt;           // LLVM 19
Rules otel;           // OpenTelemetry's eBPF profiler of October 2026
Rules parca;          // parca-dev/usdt of 2026
Rules tetragon;       // 2026
Rules gadget;         // Inspektor Gadget of 2026

// The notes as libbpf reads them, and what follows from attaching those of each probe together.
// bpftrace uses both.
[[nodiscard]] Reading read_like_libbpf(const Facts& facts);
void attach_with_libbpf(const Facts& facts, const Reading& reading, bool current, Report& report);

// libbpf's sanity_check_usdt_elf(): does it take files of this class? Its own is 64 bits, but on
// 32-bit ARM.
[[nodiscard]] bool native_class(const ElfHeader& header);

// Reports `wrong_address` where the file offset of the consumer's uprobe is not the site's, and
// what the kernel has against the site.
void check_site(const Facts& facts, std::size_t probe, std::uint64_t computed, Report& report);

// Reports the first argument that cannot be read, where there is one.
void check_arguments(const Facts& facts, std::size_t probe, ArgumentRule rule, Report& report);
// The same for a fault that is known.
void report_argument(std::size_t probe, const ArgumentFault& fault, Report& report);

// Which sections of notes a consumer reads.
struct SectionsRead {
  bool first_only{};
  bool notes_only{};  // of the type SHT_NOTE
  bool not_loaded{};  // without SHF_ALLOC
};
// Why it reads the section not; "" where it does.
[[nodiscard]] std::string_view section_fault(const Facts& facts, const Section& section,
                                             const SectionsRead& wanted);

// Calls `read` with each section that the consumer reads.
template <typename Read>
void read_sections(const Facts& facts, Reading& reading, const SectionsRead& wanted, Read read) {
  for (const Section* section : facts.note_sections) {
    const std::string_view fault = section_fault(facts, *section, wanted);
    if (fault.empty()) {
      read(*section);
    } else {
      reading.skip_section(*section, fault);
    }
  }
}

// Calls `check` with each probe whose note the consumer has found.
template <typename Check>
void for_each_seen(const Facts& facts, const Reading& reading, Check check) {
  for (std::size_t i = 0; i < facts.probes.size(); ++i) {
    if (const Seen* seen = reading.seen(i)) check(i, *seen);
  }
}

// A number that a consumer computes, as the file's class wraps it.
[[nodiscard]] inline std::uint64_t wrapped(const Facts& facts, std::uint64_t value) {
  return facts.file.header().is64 ? value : value & 0xffffffffU;
}

}  // namespace reprobe::consumers
