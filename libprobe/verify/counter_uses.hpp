// Every check of a counter in a file, and what else may lead to one: verify's own reading, apart
// from the one that `reprobe guards` plans with.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "libprobe/code/flow.hpp"
#include "libprobe/probes/probe.hpp"
#include "libprobe/verify/counter_references.hpp"

namespace reprobe {

// A counter whose probes' site tells the same: the site is a nop while nobody traces.
struct CheckedCounter {
  VirtAddr address;
  std::vector<std::size_t> probes;  // of ProbeFile::probes, in note order
  std::vector<VirtAddr> sites;      // of these, ascending
  VirtAddr site;                    // of the first note
  std::uint8_t unarmed{};           // its byte
  std::vector<VirtAddr> others;     // the other sites, ascending, where each shows the same byte
  std::string why_not;              // why the site does not tell the same; "" where it does
};

// By address.
[[nodiscard]] std::vector<CheckedCounter> checked_counters(const ElfFile& file,
                                                           const ProbeFile& probes);

enum class CheckKind {
  compare,  // with 0; test of the lowest bit
  below,    // with 1: is the counter below it?
  load,     // into a register of 16 bits, or zero-extended
  merge,    // or of the counter to a register of 16 bits
  address,  // no check: a register gets the counter's address, which arrives at one
};

struct CounterUse {
  X86Reading code;
  CheckKind kind{};
  bool through_register{};
  // Of a load: flags from before it are read behind it. Of `below`: ZF is read too.
  bool flags_live{};
  std::optional<VirtAddr> got;  // CheckKind::address: it takes the distance from there
  std::vector<std::size_t> counters;  // ascending
  std::string why_not;  // why nothing may stand for it; "" where something may
};

struct CounterUses {
  std::vector<CounterUse> uses;  // by address
  std::vector<UnknownUse> unknown;
};

struct ReadUses {
  FlowReader flows;  // of all functions with uses and with sites
  CounterUses uses;
};

// Nothing where the file's code cannot be read.
[[nodiscard]] std::optional<ReadUses> read_counter_uses(const ElfFile& file,
                                                        const ProbeFile& probes,
                                                        std::span<const CheckedCounter> counters);

}  // namespace reprobe
