// Execution in one file, from an address on: nops and direct jumps do nothing but lead on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/verify/x86_reading.hpp"

namespace reprobe {

// Far more than a stub holds, in instructions that do something: a way that does not come back by
// then is not proven.
inline constexpr unsigned kMostWalkSteps = 256;

// The site (by its address in the original) whose note names this address.
using SledOf = std::function<std::optional<VirtAddr>(VirtAddr)>;

// Code of the result that is executed, [begin, end), with the stack pointer `lower` bytes lower
// than in the original.
struct Executed {
  VirtAddr begin, end;
  std::int64_t lower{};
  bool nop{};
};

// A slot that the sled of a site tests.
struct PassedSlot {
  VirtAddr site;
  VirtAddr slot;
  bool keeps_flags{};  // the test leaves them as they were
};

// The sites (or their sleds) that it passes are kept.
class CodeWalker {
 public:
  // `nops`: how many nops and jumps may still be passed in the function. `lower`: bytes by which
  // the stack pointer is lower than in the original.
  CodeWalker(const ElfFile& file, VirtAddr at, const SledOf& site_at, std::size_t& nops,
             std::int64_t lower = 0)
      : file_(file), site_at_(site_at), nops_(nops), at_(at), lower_(lower) {}

  // To the next instruction that does something, or to where `arrived`. False: there is none.
  // `guards`: two instructions that lower and raise the stack pointer around nops do nothing,
  // either.
  bool settle(bool guards, const std::function<bool(VirtAddr)>& arrived = {});
  void next() { skip(code_->size); }
  void skip(Size size) {
    at_.value += size.value;
    sled_of_.reset();
    ++steps_;
  }

  // What was passed since the last call.
  [[nodiscard]] std::vector<Executed> take_executed() { return std::exchange(executed_, {}); }

  // settle() found a loop in which nothing is done but sites are passed: the sites before it, and
  // those that it passes for ever.
  void spin_from(std::size_t sites) { spins_from_ = sites; }
  [[nodiscard]] bool spins() const { return spins_from_.has_value() && !lowered_; }
  // The first `count` sites of a loop that spins.
  [[nodiscard]] std::vector<VirtAddr> passed_for_ever(std::size_t count) const;

  // settle() ended at code that cannot be read, which the walker stands before.
  [[nodiscard]] bool lost() const { return lost_ && !lowered_; }
  [[nodiscard]] VirtAddr at() const { return at_; }
  [[nodiscard]] const X86Reading& code() const { return *code_; }
  [[nodiscard]] ByteView bytes() const { return file_.bytes_at(code_->address, code_->size); }
  // Is it the one or the other instruction of a guard?
  [[nodiscard]] bool is_guard_like() const;
  [[nodiscard]] std::vector<VirtAddr>& sites() { return sites_; }
  [[nodiscard]] const std::vector<VirtAddr>& visited() const { return visited_; }
  // Of each site how much lower the stack pointer was.
  [[nodiscard]] const std::vector<std::pair<VirtAddr, std::int64_t>>& lowers() const {
    return lowers_;
  }
  [[nodiscard]] const std::vector<PassedSlot>& slots() const { return slots_; }

 private:
  bool is_guard();
  bool passes_slot();

  const ElfFile& file_;
  const SledOf& site_at_;
  std::size_t& nops_;
  VirtAddr at_;
  std::int64_t lower_;
  std::vector<std::pair<VirtAddr, std::int64_t>> lowers_;
  std::vector<PassedSlot> slots_;
  std::optional<VirtAddr> sled_of_;  // the site whose sled's nops are being passed
  std::optional<X86Reading> code_;
  bool lowered_{};
  bool lost_{};
  std::optional<std::size_t> spins_from_;
  unsigned steps_{};
  std::vector<VirtAddr> sites_;
  std::vector<VirtAddr> visited_;
  std::vector<Executed> executed_;
};

}  // namespace reprobe
