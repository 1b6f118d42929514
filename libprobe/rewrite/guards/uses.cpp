#include "libprobe/rewrite/guards/uses.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "libprobe/code/flag_use.hpp"
#include "libprobe/code/true_branches.hpp"
#include "libprobe/code/value_origin.hpp"
#include "libprobe/rewrite/guards/address_walk.hpp"
#include "libprobe/rewrite/guards/check_forms.hpp"

namespace reprobe {

const char* to_string(GuardForm form) {
  switch (form) {
    case GuardForm::compare:
      return "compare";
    case GuardForm::bit:
      return "bit";
    case GuardForm::below:
      return "below";
    case GuardForm::load:
      return "load";
    case GuardForm::merge:
      return "merge";
    case GuardForm::address:
      return "address";
  }
  return "";
}

namespace {

using How = CounterReference::How;

// For the functions of a sane file, which do not overlap, and the walks in them.
constexpr std::uint64_t kMostPasses = 4, kFewestSteps = std::uint64_t{1} << 20;

// The uses in one function.
class FunctionUses {
 public:
  // `references`: those in the function.
  FunctionUses(const CodeRanges& ranges, const FunctionFlow& flow, Callees& callees,
               std::span<const CounterReference> references, std::span<const GuardCounter> counters,
               std::uint64_t& steps, GuardUses& out)
      : ranges_(ranges),
        callees_(callees),
        flow_(flow),
        references_(references),
        counters_(counters),
        arrivals_(arrivals_of()),
        piece_(piece_of()),
        finder_(piece_),
        steps_(steps),
        out_(out) {}

  void run() {
    for (const CounterReference& reference : references_) {
      if (flow_.at(reference.code.address) == nullptr) {
        unknown(reference, "code that is not understood");
      } else if (reference.how == How::memory) {
        add_direct(reference);
      } else {
        add_address(reference);
      }
    }
    for (const auto& [address, counters] : checks_) add_check(VirtAddr{address}, counters);
  }

 private:
  void unknown(const CounterReference& reference, std::string what) {
    out_.unknown.push_back({reference.counter, reference.code.address, std::move(what)});
  }
  void keep(GuardUse use) { out_.uses.push_back(std::move(use)); }

  static GuardForm form_of(const CodeInstruction& code) {
    switch (*check_form(code)) {
      case CheckForm::compare:
        return GuardForm::compare;
      case CheckForm::bit:
        return GuardForm::bit;
      case CheckForm::below:
        return GuardForm::below;
      case CheckForm::load:
        return GuardForm::load;
      case CheckForm::merge:
        break;
    }
    return GuardForm::merge;
  }

  void add_direct(const CounterReference& reference) {
    const CodeInstruction& code = reference.code;
    const VirtAddr operand =
        code.rip_target.value_or(VirtAddr{static_cast<std::uint64_t>(code.memory->displacement)});
    if (!check_form(code) || operand != counters_[reference.counter].address)
      return unknown(reference, "an instruction that is not understood");
    keep(check(code, false, {reference.counter}));
  }

  void add_address(const CounterReference& reference) {
    const CodeInstruction& code = reference.code;
    const auto reg = address_register(code);
    if (!reg) return unknown(reference, "an instruction that is not understood");
    const bool distance = reference.how == How::distance;
    const AddressUses uses =
        follow_address(address_code(), code, *reg, counters_[reference.counter].sites, distance);
    if (!uses.reason.empty()) {
      out_.unknown.push_back({reference.counter, uses.at, uses.reason});
      return;
    }
    // What is left of a probe's operand ("m"(semaphore), sys/sdt.h) in %rdx is no result.
    const bool left_over = uses.checks.empty() && uses.at_site;
    const VirtAddr passed =
        uses.passed_at.value == 0 && !left_over ? uses.left_at : uses.passed_at;
    if (passed.value != 0) {
      out_.unknown.push_back({reference.counter, passed, "the counter's address may be passed on"});
      return;
    }
    if (uses.checks.empty()) return;
    followed_.insert(code.address.value);
    for (const VirtAddr check : uses.checks) {
      if (distance && !adds_got(*flow_.at(check), reference))
        return unknown(reference, "its distance from the GOT is taken");
    }
    for (const VirtAddr check : uses.checks) checks_[check.value].insert(reference.counter);
    GuardUse use;
    use.code = code;
    use.function = flow_.function.start;
    use.form = GuardForm::address;
    use.counters = {reference.counter};
    if (distance) use.got = reference.got;
    keep(std::move(use));
  }

  void add_check(VirtAddr address, const std::set<std::size_t>& counters) {
    const CodeInstruction& code = *flow_.at(address);
    GuardUse use = check(code, true, {counters.begin(), counters.end()});
    if (use.reason.empty() && !only_counters(code))
      use.reason = "the register may hold another address";
    keep(std::move(use));
  }

  [[nodiscard]] GuardUse check(const CodeInstruction& code, bool through_register,
                               std::vector<std::size_t> counters) {
    GuardUse use;
    use.code = code;
    use.function = flow_.function.start;
    use.form = form_of(code);
    use.through_register = through_register;
    use.counters = std::move(counters);
    use.reason = has_target_inside(code) ? "a target inside the instruction" : look_at_flags(use);
    return use;
  }

  // Sets flags_live. Why the flags do not allow another instruction there, or "".
  [[nodiscard]] std::string look_at_flags(GuardUse& use) {
    const auto reads_only = [&](StatusFlag flag) {
      return only_reads(flag, ranges_, flow_, use.code.end(), steps_);
    };
    bool good = true;
    if (use.form == GuardForm::load) {
      use.flags_live = !reads_only(StatusFlag::none);
      if (use.flags_live && keeps_upper_bits(use.code))
        return "the flags are read behind a load of 16 bits";
    } else if (use.form == GuardForm::compare || use.form == GuardForm::bit) {
      good = reads_only(StatusFlag::zero);
    } else if (use.form == GuardForm::below) {
      use.flags_live = !reads_only(StatusFlag::carry);
      good = !use.flags_live || reads_only(StatusFlag::carry_and_zero);
    }
    return good ? "" : "more is read from the flags than whether the counter is 0";
  }

  // Neither four bytes that happen to hold an address nor bytes that look like a jump of code
  // around the function are one: the instruction is known by what it refers to.
  [[nodiscard]] bool has_target_inside(const CodeInstruction& code) const {
    for (auto it = std::ranges::upper_bound(flow_.targets, code.address, {}, &CodeTarget::address);
         it != flow_.targets.end() && it->address < code.end(); ++it) {
      if ((it->kinds & ~(kTargetWord | kTargetDistance | kTargetForeign)) != 0) return true;
    }
    return false;
  }

  // The instructions of the function itself, without the padding.
  [[nodiscard]] std::size_t own_code() const {
    const auto end =
        std::ranges::lower_bound(flow_.code, flow_.end(), {}, &CodeInstruction::address);
    return static_cast<std::size_t>(end - flow_.code.begin());
  }

  [[nodiscard]] std::vector<ArrivalPoint> arrivals_of() const {
    constexpr TargetKinds kFromElsewhere =
        kTargetForeign | kTargetLandingPad | kTargetSymbol | kTargetFde;
    constexpr TargetKinds kByJump = kTargetTable | kTargetRelocation | kTargetWord |
                                    kTargetDistance | kTargetLea | kTargetEndbr;
    std::vector<ArrivalPoint> arrivals;
    for (const CodeTarget& target : flow_.targets) {
      if ((target.kinds & kFromElsewhere) != 0) {
        arrivals.push_back({target.address, Arrival::unknown});
      } else if ((target.kinds & kByJump) != 0) {
        arrivals.push_back({target.address, Arrival::indirect});
      }
    }
    return arrivals;
  }

  [[nodiscard]] CodePiece piece_of() const {
    CodePiece piece;
    piece.code = std::span(flow_.code).first(own_code());
    piece.arrivals = arrivals_;
    return piece;
  }

  // On every path to the check a register of its operand holds what was followed there: of two the
  // other one has been found to hold the GOT.
  [[nodiscard]] bool only_counters(const CodeInstruction& code) {
    const auto followed = [&](unsigned register_of_operand) {
      return comes_from(
          address_code(), code.address, register_of_operand, [&](std::size_t at, unsigned reg) {
            const CodeInstruction& origin = piece_.code[at];
            return followed_.contains(origin.address.value) && address_register(origin) == reg;
          });
    };
    return flow_.complete &&
           (followed(*code.memory->base) || (code.memory->index && followed(*code.memory->index)));
  }

  // lea label(%rip),%a; movabs $distance,%b; add: the register beside the counter's distance holds
  // the GOT on every path.
  [[nodiscard]] bool adds_got(const CodeInstruction& check, const CounterReference& reference) {
    const unsigned base = *check.memory->base, index = *check.memory->index;
    const auto constant = [&](std::size_t at, unsigned reg) -> std::optional<std::uint64_t> {
      const auto found = finder_.origins(at, reg);
      if (found.size() != 1 || found[0].kind != ValueOrigin::Kind::constant) return std::nullopt;
      return found[0].address.value;
    };
    const auto holds_got = [&](unsigned register_of_operand) {
      return comes_from(address_code(), check.address, register_of_operand,
                        [&](std::size_t at, unsigned) {
                          const X86Encoding& e = piece_.code[at].encoding;
                          const bool adds = e.map == OpcodeMap::one_byte && e.rex_w && e.mod == 3 &&
                                            (e.opcode == 0x01 || e.opcode == 0x03);
                          if (!adds) return false;
                          const auto a = constant(at, e.reg), b = constant(at, e.rm);
                          return a && b && *a + *b == reference.got.value;
                        });
    };
    return flow_.complete && (holds_got(base) || holds_got(index));
  }

  [[nodiscard]] AddressCode address_code() {
    if (!frame_) frame_.emplace(ranges_, flow_, callees_);
    return {ranges_, flow_, callees_, *frame_, finder_, steps_};
  }

  const CodeRanges& ranges_;
  Callees& callees_;
  const FunctionFlow& flow_;
  std::optional<FrameWords> frame_;  // once an address is followed
  std::span<const CounterReference> references_;
  std::span<const GuardCounter> counters_;
  std::vector<ArrivalPoint> arrivals_;
  CodePiece piece_;
  OriginFinder finder_;
  std::uint64_t& steps_;
  GuardUses& out_;
  std::set<std::uint64_t> followed_;  // those of which all that is done with it is known
  std::map<std::uint64_t, std::set<std::size_t>> checks_;  // through registers
};

}  // namespace

GuardUses find_guard_uses(const ElfFile& file, const CodeRanges& ranges, const FlowReader& flows,
                          const CounterReferences& references,
                          std::span<const GuardCounter> counters) {
  GuardUses out;
  out.unknown = references.unknown;
  const auto& found = references.found;
  TrueBranches branches(file, flows.functions());
  Callees callees(file, ranges);
  std::uint64_t bytes = file.source().size() * kMostPasses;
  std::uint64_t steps = file.source().size() + kFewestSteps;
  for (std::size_t i = 0; i < found.size();) {
    auto flow = bytes != 0 ? flows.function_of(found[i].code.address)
                           : fail(ErrorCode::refused, "", "too much code");
    if (!flow || flow->code.empty()) {
      out.unknown.push_back({found[i].counter, found[i].code.address, "in no known function"});
      ++i;
      continue;
    }
    bytes -= std::min(bytes, flow->function.size.value);
    branches.keep(*flow);
    std::size_t next = i + 1;
    while (next < found.size() && found[next].code.address < flow->end()) ++next;
    FunctionUses(ranges, *flow, callees, std::span(found).subspan(i, next - i), counters, steps,
                 out)
        .run();
    i = next;
  }
  std::ranges::sort(out.uses, {}, [](const GuardUse& use) { return use.code.address; });
  return out;
}

}  // namespace reprobe
