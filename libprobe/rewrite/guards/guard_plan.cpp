#include "libprobe/rewrite/guards/guard_plan.hpp"

#include <algorithm>
#include <map>

#include "libprobe/rewrite/sled/displace.hpp"
#include "libprobe/rewrite/sled/runs.hpp"

namespace reprobe {
namespace {

constexpr std::byte kTrap{0xcc};

// The steps of a stub at `at` with the place of each; the jump back is the last.
struct Laid {
  Bytes code;
  std::vector<StubPiece> pieces;
};

Result<Laid> lay_out(const ElfFile& file, const GuardStub& stub, std::span<const GuardUse> uses,
                     const GuardBytes& bytes, VirtAddr at) {
  Laid laid;
  const auto append = [&](const Bytes& part, VirtAddr original) {
    const VirtAddr start{at.value + laid.code.size()};
    laid.pieces.push_back({start, Size{part.size()}, original, 0});
    laid.code.insert(laid.code.end(), part.begin(), part.end());
  };
  for (const GuardStep& step : stub.steps) {
    const VirtAddr here{at.value + laid.code.size()};
    const auto part =
        step.use ? bytes(uses[*step.use], here)
                 : displace(step.code, file.bytes_at(step.code.address, step.code.size), here);
    if (!part) return tl::unexpected(part.error());
    append(*part, step.code.address);
  }
  if (stub.resume) {
    const auto jump = encode_jump(VirtAddr{at.value + laid.code.size()}, *stub.resume);
    if (!jump) return tl::unexpected(jump.error());
    append(*jump, *stub.resume);
  }
  return laid;
}

class FunctionGuards {
 public:
  FunctionGuards(const ElfFile& file, const FunctionFlow& flow, std::vector<GuardUse>& uses,
                 std::size_t first, std::size_t count, std::span<const VirtAddr> sites,
                 const GuardBytes& bytes,
                 const std::function<bool(const std::vector<StubPiece>&)>& unwinds, GuardPlan& out)
      : file_(file),
        flow_(flow),
        uses_(uses),
        sites_(sites),
        bytes_(bytes),
        unwinds_(unwinds),
        out_(out) {
    for (std::size_t i = first; i < first + count; ++i) {
      by_address_[uses[i].code.address.value] = i;
      addresses_.push_back(uses[i].code.address);
    }
  }

  void run() {
    // Those that need their neighbours' room choose first.
    for (const auto& [address, i] : by_address_)
      if (wants_stub(i) && uses_[i].code.size.value < kJumpSize) displace_run(i);
    for (const auto& [address, i] : by_address_)
      if (wants_stub(i) && uses_[i].code.size.value >= kJumpSize) replace_alone(i);
    for (const auto& [address, i] : by_address_)
      if (!is_covered(i) && uses_[i].reason.empty() && fits_in_place(uses_[i]))
        out_.in_place.push_back(i);
  }

 private:
  [[nodiscard]] bool is_covered(std::size_t i) const {
    return !taken_.is_free(uses_[i].code.address, uses_[i].code.end());
  }
  [[nodiscard]] bool wants_stub(std::size_t i) const {
    return uses_[i].reason.empty() && !fits_in_place(uses_[i]) && !is_covered(i);
  }

  // The instruction is long enough for the jump: nothing else moves.
  void replace_alone(std::size_t i) {
    const CodeInstruction& code = uses_[i].code;
    GuardStub stub{code.address, code.end(), {{code, i}}, code.end()};
    if (!take(std::move(stub))) uses_[i].reason = "the stub cannot be written";
  }

  void displace_run(std::size_t i) {
    if (!flow_.complete) {
      uses_[i].reason = "control flow that is not understood";
      return;
    }
    const auto at =
        std::ranges::lower_bound(flow_.code, uses_[i].code.address, {}, &CodeInstruction::address);
    RunFinder finder(flow_, addresses_, taken_);
    const auto reason = finder.each(static_cast<std::size_t>(at - flow_.code.begin()), kJumpSize,
                                    Targets::none, [&](const Run& run) { return take_run(run); });
    if (reason) uses_[i].reason = reason->words;
  }

  bool take_run(const Run& run) {
    GuardStub stub{flow_.code[run.first].address, run.end, {}, {}};
    // A probe stays where its note says.
    const auto site = std::ranges::lower_bound(sites_, stub.begin);
    if (site != sites_.end() && *site < stub.end) return false;
    for (std::size_t k = run.first; k <= run.last; ++k) {
      const CodeInstruction& code = flow_.code[k];
      const auto use = by_address_.find(code.address.value);
      if (use != by_address_.end() && !uses_[use->second].reason.empty()) return false;
      stub.steps.push_back(
          {code, use == by_address_.end() ? std::nullopt : std::optional(use->second)});
    }
    if (run.falls_through) stub.resume = flow_.code[run.last].end();
    return take(std::move(stub));
  }

  bool take(GuardStub stub) {
    const auto laid = lay_out(file_, stub, uses_, bytes_, stub.begin);
    if (!laid || !unwinds_(laid->pieces) || !taken_.is_free(stub.begin, stub.end)) return false;
    taken_.used[stub.begin.value] = stub.end.value;
    out_.stubs.push_back(std::move(stub));
    return true;
  }

  const ElfFile& file_;
  const FunctionFlow& flow_;
  std::vector<GuardUse>& uses_;
  std::span<const VirtAddr> sites_;
  const GuardBytes& bytes_;
  const std::function<bool(const std::vector<StubPiece>&)>& unwinds_;
  GuardPlan& out_;
  std::map<std::uint64_t, std::size_t> by_address_;  // uses of the function
  std::vector<VirtAddr> addresses_;                  // likewise, ascending
  TakenCode taken_;
};

}  // namespace

GuardPlan plan_guard_code(const ElfFile& file, const FlowReader& flows, std::vector<GuardUse>& uses,
                          std::span<const VirtAddr> sites, const GuardBytes& bytes,
                          const std::function<bool(const std::vector<StubPiece>&)>& unwinds) {
  GuardPlan plan;
  // Functions of a sane file do not overlap.
  std::uint64_t bytes_left = file.source().size() * 4;
  for (std::size_t i = 0; i < uses.size();) {
    const auto flow = bytes_left != 0 ? flows.function_of(uses[i].code.address)
                                      : fail(ErrorCode::refused, "", "too much code");
    std::size_t count = 1;
    while (flow && i + count < uses.size() && uses[i + count].code.address < flow->end()) ++count;
    if (flow) {
      bytes_left -= std::min(bytes_left, flow->function.size.value);
      FunctionGuards(file, *flow, uses, i, count, sites, bytes, unwinds, plan).run();
    } else {
      uses[i].reason = "in no known function";
    }
    i += count;
  }
  std::ranges::sort(plan.stubs, {}, &GuardStub::begin);
  return plan;
}

Result<EmittedGuards> emit_guard_stubs(const ElfFile& file, std::span<const GuardStub> stubs,
                                       std::span<const GuardUse> uses, const GuardBytes& bytes,
                                       VirtAddr at) {
  EmittedGuards emitted;
  for (const GuardStub& stub : stubs) {
    const VirtAddr start{at.value + emitted.code.size()};
    auto laid = lay_out(file, stub, uses, bytes, start);
    if (!laid) return tl::unexpected(laid.error());
    auto jump = encode_jump(stub.begin, start);
    if (!jump) return tl::unexpected(jump.error());
    // Nothing gets behind it; if something did, it must not compute with half an instruction.
    jump->resize(static_cast<std::size_t>(stub.end.value - stub.begin.value), kTrap);
    emitted.jumps.emplace_back(stub.begin, std::move(*jump));
    emitted.code.insert(emitted.code.end(), laid->code.begin(), laid->code.end());
    emitted.unwind.push_back({std::move(laid->pieces)});
  }
  return emitted;
}

}  // namespace reprobe
