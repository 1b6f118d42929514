#include "libprobe/code/boundary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "libprobe/code/decoder.hpp"
#include "libprobe/code/nop.hpp"

namespace reprobe {
namespace {

// Of one decoded instruction, what the checks need; offsets count from the function's start and
// fit 32 bits because longer functions are not decoded.
struct Step {
  std::uint32_t offset{};
  std::uint8_t size{};
  bool ends_block{};
  bool reached{};  // control flow leads to it, or it is a nop of a row behind such an instruction
};

// A function decoded from its start.
struct Listing {
  std::vector<Step> steps;
  std::vector<std::uint32_t> targets;  // of direct branches, inside the function; sorted, unique
  bool indirect_jump{};
  bool jumps_out{};
  std::string incomplete;  // why the end was not reached; "" where it was
};

class Walker {
 public:
  Walker(const ElfFile& file, const Function& function, ByteView code)
      : relocatable_(file.header().type == ET_REL), function_(function), code_(code) {}

  Listing walk(const Decoder& decoder) {
    Listing listing;
    std::size_t at = 0;
    while (at < code_.size()) {
      const VirtAddr address{function_.start.value + at};
      const auto instruction = decoder.decode(code_.subspan(at), address);
      if (!instruction) {
        listing.incomplete = fmt::format("no instruction at {:#x}", address.value);
        break;
      }
      note_flow(*instruction, listing);
      listing.steps.push_back({.offset = static_cast<std::uint32_t>(at),
                               .size = static_cast<std::uint8_t>(instruction->size.value),
                               .ends_block = instruction->ends_block()});
      at += static_cast<std::size_t>(instruction->size.value);
    }
    if (listing.incomplete.empty() && code_.size() != function_.size.value)
      listing.incomplete = "the function goes on behind the bytes of its segment or section";
    std::ranges::sort(listing.targets);
    listing.targets.erase(std::unique(listing.targets.begin(), listing.targets.end()),
                          listing.targets.end());
    return listing;
  }

 private:
  void note_flow(const Instruction& instruction, Listing& listing) const {
    const bool jumps = instruction.flow == Flow::jump || instruction.flow == Flow::conditional;
    if (relocatable_) return;
    if (!instruction.target) {
      listing.indirect_jump |= jumps;
      return;
    }
    const std::uint64_t target = instruction.target->value;
    if (in_range(target, function_.start.value, function_.size.value)) {
      listing.targets.push_back(static_cast<std::uint32_t>(target - function_.start.value));
    } else {
      listing.jumps_out |= jumps;
    }
  }

  // Relocations still have to fill in the branches' targets.
  bool relocatable_;
  const Function& function_;
  ByteView code_;
};

class BoundaryChecker {
 public:
  BoundaryChecker(const ElfFile& file, const Function& function, ByteView code,
                  const Decoder& decoder, Listing listing)
      : header_(file.header()),
        function_(function),
        code_(code),
        decoder_(decoder),
        listing_(std::move(listing)),
        contradiction_(find_contradiction()) {
    find_rows();
    mark_reached();
  }

  BoundaryCheck check(VirtAddr site) const {
    const auto offset = static_cast<std::uint32_t>(site.value - function_.start.value);
    const Step* step = step_at(offset);
    if (step == nullptr) return {.detail = listing_.incomplete};
    if (!contradiction_.empty()) return {.detail = contradiction_};
    if (step->offset == offset) {
      return {Boundary::yes, {}, false, after_terminator(*step), before_aligned_target(*step)};
    }
    if (!listing_.incomplete.empty()) return {.detail = listing_.incomplete};
    if (header_.type == ET_REL)
      return {.detail = inside(*step) + ", but its branches are not relocated"};
    if (const std::string doubt = doubt_about(*step); !doubt.empty()) {
      return {.detail = fmt::format("{}, but {}", inside(*step), doubt), .inside = true};
    }
    return {.result = Boundary::no, .detail = inside(*step), .inside = true};
  }

 private:
  // Why the function may be entered at another byte than the instructions' first.
  std::string doubt_about(const Step& step) const {
    if (listing_.indirect_jump) return "an indirect jump may go there";
    if (function_.size_guessed) return "no symbol says where the function ends";
    return step.reached ? "" : "nothing branches there";
  }

  // The instruction that the byte belongs to; nullptr behind the last one.
  const Step* step_at(std::uint32_t offset) const {
    const auto after = std::ranges::upper_bound(listing_.steps, offset, {}, &Step::offset);
    if (after == listing_.steps.begin()) return nullptr;
    const Step& step = *std::prev(after);
    return offset - step.offset < step.size ? &step : nullptr;
  }

  std::uint64_t address(const Step& step) const { return function_.start.value + step.offset; }

  std::string name(const Step& step) const {
    const std::string mnemonic =
        decoder_.mnemonic(code_.subspan(step.offset), VirtAddr{address(step)});
    return mnemonic.empty() ? "the instruction" : mnemonic;
  }

  std::string inside(const Step& step) const {
    return fmt::format("inside {} at {:#x} ({} bytes)", name(step), address(step), step.size);
  }

  // A direct branch into the middle of an instruction: one of the two is not what it seems.
  std::string find_contradiction() const {
    for (const std::uint32_t target : listing_.targets) {
      const Step* step = step_at(target);
      if (step == nullptr || step->offset == target || skips_prefixes(*step, target)) continue;
      return fmt::format("a branch goes to {:#x}, {}", function_.start.value + target,
                         inside(*step));
    }
    return {};
  }

  // Bytes behind a jump or return may be data, until something branches there.
  void mark_reached() {
    bool reached = true;
    bool only_nops = false;  // since the last jump or return
    for (Step& step : listing_.steps) {
      if (is_target(step.offset)) reached = true;
      only_nops = only_nops && is_nop(step);
      step.reached = reached || only_nops;
      if (!step.ends_block) continue;
      only_nops = reached;
      reached = false;
    }
  }

  // Hand-written code jumps over the `lock` of an instruction in a single-threaded process.
  bool skips_prefixes(const Step& step, std::uint32_t target) const {
    if (header_.machine != EM_386 && header_.machine != EM_X86_64) return false;
    const ByteView skipped = code_.subspan(step.offset, target - step.offset);
    return std::ranges::all_of(skipped, [](std::byte b) {
      return b == std::byte{0xf0} || b == std::byte{0xf2} || b == std::byte{0xf3};
    });
  }

  // Once for all steps: a long row of nops that holds thousands of sites is walked once, not once
  // a site.
  void find_rows() {
    const auto& steps = listing_.steps;
    is_nop_.resize(steps.size());
    row_begin_.resize(steps.size());
    row_end_.resize(steps.size());
    for (std::size_t i = 0; i < steps.size(); ++i) {
      is_nop_[i] =
          nop_at(code_.subspan(steps[i].offset), header_, function_.thumb).kind != NopKind::none;
      const bool goes_on = i > 0 && is_nop_[i] && is_nop_[i - 1] && !is_target(steps[i].offset);
      row_begin_[i] = goes_on ? row_begin_[i - 1] : static_cast<std::uint32_t>(i);
    }
    for (std::size_t i = steps.size(); i-- > 0;) {
      const bool goes_on =
          i + 1 < steps.size() && is_nop_[i + 1] && !is_target(steps[i + 1].offset);
      row_end_[i] = goes_on ? row_end_[i + 1] : static_cast<std::uint32_t>(i + 1);
    }
  }

  std::size_t index_of(const Step& step) const {
    return static_cast<std::size_t>(&step - listing_.steps.data());
  }

  bool is_nop(const Step& step) const { return is_nop_[index_of(step)]; }

  bool is_target(std::uint32_t offset) const {
    return std::ranges::binary_search(listing_.targets, offset);
  }

  bool after_terminator(const Step& site) const {
    if (header_.type == ET_REL || !listing_.incomplete.empty() || listing_.indirect_jump ||
        listing_.jumps_out || function_.may_have_landing_pads || function_.thumb || !is_nop(site))
      return false;
    const auto& steps = listing_.steps;
    const std::size_t first = row_begin_[index_of(site)];
    if (first == 0 || is_target(steps[first].offset) || !steps[first - 1].ends_block) return false;
    return behind_nops(site) == steps.size() || before_aligned_target(site);
  }

  bool before_aligned_target(const Step& site) const {
    if (header_.type == ET_REL || !is_nop(site)) return false;
    const std::size_t behind = behind_nops(site);
    return behind < listing_.steps.size() && is_target(listing_.steps[behind].offset) &&
           address(listing_.steps[behind]) % 8 == 0;
  }

  // The index of the step behind the row of nops that the site is in; a branch target ends the row.
  std::size_t behind_nops(const Step& site) const { return row_end_[index_of(site)]; }

  const ElfHeader& header_;
  const Function& function_;
  ByteView code_;
  const Decoder& decoder_;
  Listing listing_;
  std::string contradiction_;
  // Of each step: whether it is a nop, and the row of nops that it belongs to.
  std::vector<bool> is_nop_;
  std::vector<std::uint32_t> row_begin_;  // the index of the row's first step
  std::vector<std::uint32_t> row_end_;    // the index behind its last
};

// Bytes of every instruction where all have one length; 0 where they do not.
std::uint64_t fixed_length(const ElfHeader& header, const Function& function) {
  if (header.machine == EM_AARCH64) return 4;
  return header.machine == EM_ARM && !function.thumb ? 4 : 0;
}

std::vector<BoundaryCheck> all_unknown(std::size_t count, const std::string& why) {
  return std::vector<BoundaryCheck>(count, BoundaryCheck{.detail = why});
}

// What the address alone tells where all instructions have one length.
void check_alignment(std::uint64_t length, std::span<const VirtAddr> sites,
                     std::vector<BoundaryCheck>& checks) {
  for (std::size_t i = 0; i < sites.size(); ++i) {
    const std::uint64_t into = sites[i].value % length;
    if (into == 0) {
      checks[i].result = Boundary::yes;
      checks[i].detail.clear();
    } else {
      checks[i].result = Boundary::no;
      checks[i].detail =
          fmt::format("inside the instruction at {:#x} ({} bytes)", sites[i].value - into, length);
      checks[i].after_terminator = checks[i].before_aligned_target = false;
    }
  }
}

std::vector<BoundaryCheck> decode_and_check(const ElfFile& file, const Function& function,
                                            std::uint32_t section, std::span<const VirtAddr> sites,
                                            Size* budget) {
  if (function.size > kLongestDecodedFunction)
    return all_unknown(sites.size(), fmt::format("the function is too long to decode ({} bytes)",
                                                 function.size.value));
  const ByteView code = file.bytes_at(function.start, function.size, section);
  if (code.empty()) return all_unknown(sites.size(), "the file does not hold the function's bytes");
  if (budget != nullptr) {
    if (budget->value < code.size())
      return all_unknown(sites.size(), "the file's functions overlap: too much to decode");
    budget->value -= code.size();
  }
  const auto decoder = Decoder::open(file.header(), function.thumb);
  if (!decoder) return all_unknown(sites.size(), "this machine's instructions are not known");
  const BoundaryChecker checker(file, function, code, *decoder,
                                Walker(file, function, code).walk(*decoder));
  std::vector<BoundaryCheck> checks;
  checks.reserve(sites.size());
  for (const VirtAddr site : sites) checks.push_back(checker.check(site));
  return checks;
}

// Without an STT_FUNC symbol, whose bit 0 tells, a stripped ARM file does not say whether the
// function is Thumb code.
bool instruction_set_unknown(const ElfHeader& header, const Function& function) {
  return header.machine == EM_ARM && function.names_here == 0 && !function.thumb;
}

}  // namespace

std::vector<BoundaryCheck> check_boundaries(const ElfFile& file, const Function& function,
                                            std::uint32_t section, std::span<const VirtAddr> sites,
                                            Size* budget) {
  if (instruction_set_unknown(file.header(), function))
    return all_unknown(sites.size(), "no symbol tells whether the function is Thumb code");
  std::vector<BoundaryCheck> checks = decode_and_check(file, function, section, sites, budget);
  const std::uint64_t length = fixed_length(file.header(), function);
  if (length != 0) check_alignment(length, sites, checks);
  return checks;
}

}  // namespace reprobe
