#include "libprobe/verify/counter_uses.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "libprobe/code/callees.hpp"
#include "libprobe/code/true_branches.hpp"
#include "libprobe/verify/counter_flow.hpp"
#include "libprobe/verify/flag_reader.hpp"

namespace reprobe {
namespace {

constexpr std::uint64_t kUsePasses = 4;

bool is_readable(const ElfFile& file, VirtAddr site) {
  const Segment* segment = file.load_segment(site);
  return segment != nullptr && (segment->flags & PF_R) != 0;
}

// Does the site's first byte alone tell whether it is armed?
bool tells(const Probe& probe, std::uint8_t unarmed) {
  const NopKind kind = probe.facts.nop.kind;
  return (kind == NopKind::nop && unarmed == 0x90) || (kind == NopKind::nop5 && unarmed == 0x0f);
}

// The sites but the first, where each has the same byte and it tells the same; else none.
std::vector<VirtAddr> other_sites(const ElfFile& file, const ProbeFile& probes,
                                  const CheckedCounter& counter) {
  std::vector<VirtAddr> others;
  for (const std::size_t i : counter.probes) {
    const Probe& probe = probes.probes[i];
    const ByteView bytes = file.bytes_at(probe.site, Size{1});
    if (bytes.empty() || std::to_integer<std::uint8_t>(bytes[0]) != counter.unarmed ||
        !is_readable(file, probe.site) || !tells(probe, counter.unarmed)) {
      return {};
    }
    if (probe.site != counter.site) others.push_back(probe.site);
  }
  std::ranges::sort(others);
  others.erase(std::unique(others.begin(), others.end()), others.end());
  return others;
}

// Sets site, unarmed and others, or says why not. A tracer that knows libbpf's sleds may arm the
// long nop behind the site's first byte, which then stays 90.
void look_at_site(const ElfFile& file, const ProbeFile& probes, CheckedCounter& counter) {
  const Probe& first = probes.probes[counter.probes.front()];
  counter.site = first.site;
  const ByteView bytes = file.bytes_at(first.site, Size{1});
  for (const std::size_t i : counter.probes) {
    const Probe& probe = probes.probes[i];
    if (probe.note.provider != first.note.provider || probe.note.name != first.note.name)
      counter.why_not = "several probes share the counter";
    if (probe.verdict != Verdict::live) counter.why_not = "a note of the counter is not live";
  }
  if (bytes.empty() || !is_readable(file, first.site)) {
    counter.why_not = "the site cannot be read";
    return;
  }
  counter.unarmed = std::to_integer<std::uint8_t>(bytes[0]);
  counter.others = other_sites(file, probes, counter);
  if (!tells(first, counter.unarmed))
    counter.why_not = "the site's first byte does not tell whether it is traced";
}

std::optional<CheckKind> check_kind(const X86Reading& code) {
  if (!code.memory || code.prefixed) return std::nullopt;
  if (code.memory->bytes == 1) {
    // A counter of a probe that nobody traces is 0: its low byte tells it, or its lowest bit.
    const bool bit = code.operation == Operation::test && code.immediate() == 1 &&
                     code.operands[0].kind == ReadOperand::Kind::memory;
    const bool load = code.operation == Operation::movzx && code.operands[0].bits >= 32;
    if (bit) return CheckKind::compare;
    return load && code.register_at(0) ? std::optional(CheckKind::load) : std::nullopt;
  }
  if (code.memory->bytes != 2) return std::nullopt;
  const auto immediate = code.immediate();
  const bool from_memory = code.operands[1].kind == ReadOperand::Kind::memory;
  const bool to_register = code.register_at(0).has_value() && from_memory;
  switch (code.operation) {
    case Operation::cmp:
      if (code.operands[0].kind != ReadOperand::Kind::memory) return std::nullopt;
      if (immediate == 0) return CheckKind::compare;
      if (immediate == 1) return CheckKind::below;
      return std::nullopt;
    case Operation::mov:
      return to_register ? std::optional(CheckKind::load) : std::nullopt;
    case Operation::movzx:
      return to_register ? std::optional(CheckKind::load) : std::nullopt;
    case Operation::bit_or:
      return to_register ? std::optional(CheckKind::merge) : std::nullopt;
    default:
      return std::nullopt;
  }
}

class UseReader {
 public:
  UseReader(const ElfFile& file, const CodeRanges& ranges, const FlowReader& flows,
            std::span<const CheckedCounter> counters)
      : file_(file),
        ranges_(ranges),
        flows_(flows),
        branches_(file, flows.functions()),
        callees_(file, ranges),
        counters_(counters) {
    for (const CheckedCounter& counter : counters) sites_.push_back(counter.sites);
  }

  CounterUses run(CounterReach reach) {
    out_.unknown = std::move(reach.unknown);
    const std::span<const CounterOperand> operands = reach.operands;
    std::uint64_t budget = file_.source().size() * kUsePasses;
    for (std::size_t i = 0; i < operands.size();) {
      auto flow = flows_.function_of(operands[i].code.address);
      if (!flow || flow->code.empty() || flow->function.size.value > budget) {
        unknown(operands[i], "in no known function");
        ++i;
        continue;
      }
      budget -= flow->function.size.value;
      branches_.keep(*flow);
      std::size_t next = i + 1;
      while (next < operands.size() && operands[next].code.address < flow->end()) ++next;
      read_function(*flow, operands.subspan(i, next - i));
      i = next;
    }
    std::ranges::sort(out_.uses, {}, [](const CounterUse& use) { return use.code.address; });
    return std::move(out_);
  }

 private:
  void unknown(const CounterOperand& operand, const char* what) {
    out_.unknown.push_back({operand.counter, operand.code.address, what});
  }

  void read_function(const FunctionFlow& flow, std::span<const CounterOperand> operands) {
    const bool pointers = std::ranges::any_of(operands, &CounterOperand::address);
    CounterFlow followed;
    if (pointers) followed = follow_counters(file_, ranges_, callees_, flow, operands, sites_);
    std::ranges::move(followed.unknown, std::back_inserter(out_.unknown));
    const std::set<VirtAddr> origins(followed.origins.begin(), followed.origins.end());
    for (const CounterOperand& operand : operands) {
      if (operand.address && origins.contains(operand.code.address)) {
        out_.uses.push_back(
            {operand.code, CheckKind::address, false, false, operand.got, {operand.counter}, ""});
      } else if (!operand.address) {
        add_direct(flow, operand);
      }
    }
    for (const PointerCheck& check : followed.checks) add_check(flow, check);
  }

  void add_direct(const FunctionFlow& flow, const CounterOperand& operand) {
    const auto kind = check_kind(operand.code);
    if (!kind || operand.code.memory->address != counters_[operand.counter].address)
      return unknown(operand, "an instruction that is not understood");
    keep(flow, {operand.code, *kind, false, false, {}, {operand.counter}, ""});
  }

  void add_check(const FunctionFlow& flow, const PointerCheck& check) {
    const auto kind = check_kind(check.code);
    if (!kind) {
      for (const std::size_t counter : check.counters)
        out_.unknown.push_back(
            {counter, check.code.address, "the counter's address is used for more than checks"});
      return;
    }
    keep(flow, {check.code,
                *kind,
                true,
                false,
                {},
                check.counters,
                check.maybe_other ? "the register may hold another address" : ""});
  }

  // With what the flags allow to stand for it.
  void keep(const FunctionFlow& flow, CounterUse use) {
    const auto only_reads = [&](ReadFlags flags) {
      return FlagReader(file_, ranges_, flow).only_reads(flags, use.code.end());
    };
    bool good = true;
    if (use.kind == CheckKind::compare) {
      good = only_reads(kZeroFlag);
    } else if (use.kind == CheckKind::below) {
      use.flags_live = !only_reads(kCarryFlag);
      good = !use.flags_live || only_reads(kCarryFlag | kZeroFlag);
    } else if (use.kind == CheckKind::load) {
      use.flags_live = !only_reads(0);
      good = !use.flags_live || use.code.operands[0].bits != 16;
    }
    if (!good && use.why_not.empty())
      use.why_not = "more is read from the flags than whether the counter is 0";
    out_.uses.push_back(std::move(use));
  }

  const ElfFile& file_;
  const CodeRanges& ranges_;
  const FlowReader& flows_;
  TrueBranches branches_;
  Callees callees_;
  std::span<const CheckedCounter> counters_;
  std::vector<std::vector<VirtAddr>> sites_;
  CounterUses out_;
};

}  // namespace

std::vector<CheckedCounter> checked_counters(const ElfFile& file, const ProbeFile& probes) {
  std::map<VirtAddr, CheckedCounter> by_address;
  for (std::size_t i = 0; i < probes.probes.size(); ++i) {
    const Probe& probe = probes.probes[i];
    if (probe.semaphore.value == 0) continue;
    CheckedCounter& counter = by_address[probe.semaphore];
    counter.address = probe.semaphore;
    counter.probes.push_back(i);
    counter.sites.push_back(probe.site);
  }
  std::vector<CheckedCounter> counters;
  for (auto& [address, counter] : by_address) {
    std::ranges::sort(counter.sites);
    look_at_site(file, probes, counter);
    counters.push_back(std::move(counter));
  }
  return counters;
}

std::optional<ReadUses> read_counter_uses(const ElfFile& file, const ProbeFile& probes,
                                          std::span<const CheckedCounter> counters) {
  const auto ranges = CodeRanges::open(file);
  if (!ranges) return std::nullopt;
  std::vector<VirtAddr> addresses;
  for (const CheckedCounter& counter : counters) addresses.push_back(counter.address);
  CounterReach reach = read_counter_reach(file, *ranges, addresses);
  std::vector<VirtAddr> asked;
  for (const Probe& probe : probes.probes) asked.push_back(probe.site);
  for (const CounterOperand& operand : reach.operands) asked.push_back(operand.code.address);
  auto flows = FlowReader::open(file, asked);
  if (!flows) return std::nullopt;
  CounterUses uses = UseReader(file, *ranges, *flows, counters).run(std::move(reach));
  return ReadUses{std::move(*flows), std::move(uses)};
}

}  // namespace reprobe
