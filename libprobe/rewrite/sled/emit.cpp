#include "libprobe/rewrite/sled/emit.hpp"

#include <algorithm>

#include "libprobe/rewrite/sled/displace.hpp"
#include "libprobe/rewrite/sled/sled_bytes.hpp"

namespace reprobe {
namespace {

constexpr std::byte kTrap{0xcc};   // int3
constexpr std::byte kShort{0xeb};  // jmp rel8
// No sled is longer: moving a stub on by this takes its sled out of the page's end.
constexpr std::uint64_t kMostShift = 16;

// A piece of a stub with its length, before it has an address.
struct Part {
  std::uint64_t size{};
  VirtAddr original;
  std::int64_t lower{};
};

std::vector<Part> parts_of(const StubPlan& stub, SledKind kind) {
  std::vector<Part> parts;
  VirtAddr last{};
  for (const StubStep& step : stub.steps) {
    const VirtAddr here = step.instruction.address;
    last = step.instruction.end();
    if (step.sled) {
      const SledBytes sled = sled_bytes(kind, step.guarded);
      if (step.guarded) {
        // Between the two lea the stack pointer is lower; the second has not run before its end.
        const SledBytes bare = sled_bytes(kind, false);
        const std::uint64_t raise = sled.bytes.size() - sled.note - bare.bytes.size();
        parts.push_back({sled.note, here, stub.lower});
        parts.push_back({bare.bytes.size() + raise, here, stub.lower + kRedZone});
      } else {
        parts.push_back({sled.bytes.size(), here, stub.lower});
      }
    }
    if (step.keeps_instruction()) {
      parts.push_back({displaced_size(step.instruction).value, here, stub.lower});
    }
  }
  // Behind a call's or jump's stub the rows are those of the call itself, which comes next.
  if (stub.resume) parts.push_back({kJumpSize, last, stub.lower});
  return parts;
}

std::uint64_t size_of(const StubPlan& stub, SledKind kind) {
  std::uint64_t size = 0;
  for (const Part& part : parts_of(stub, kind)) size += part.size;
  return size;
}

class Emitter {
 public:
  Emitter(const ElfFile& file, const SledPlan& plan, SledKind kind, VirtAddr at)
      : file_(file), plan_(plan), kind_(kind), next_(at) {}

  Result<EmittedSleds> run() {
    for (const StubPlan& stub : plan_.stubs) {
      place(stub);
      auto done = emit(stub);
      if (!done) return tl::unexpected(done.error());
    }
    for (const Patch& patch : plan_.patches) {
      auto bytes = patch_bytes(patch);
      if (!bytes) return tl::unexpected(bytes.error());
      result_.patches.emplace_back(patch.at, std::move(*bytes));
    }
    return std::move(result_);
  }

 private:
  // Moves on to where all sleds of the stub lie in one page each.
  void place(const StubPlan& stub) {
    for (std::uint64_t shift = 0; shift <= kMostShift && !fits(stub); ++shift) {
      result_.code.push_back(kTrap);
      ++next_.value;
    }
  }

  [[nodiscard]] bool fits(const StubPlan& stub) const {
    std::uint64_t at = next_.value;
    for (const StubStep& step : stub.steps) {
      if (step.sled) {
        const SledBytes sled = sled_bytes(kind_, step.guarded);
        if (!sled_fits_page(kind_, VirtAddr{at + sled.note})) return false;
        at += sled.bytes.size();
      }
      if (step.keeps_instruction()) at += displaced_size(step.instruction).value;
    }
    return true;
  }

  Result<void> emit(const StubPlan& stub) {
    const VirtAddr start = next_;
    const std::size_t from = result_.code.size();
    std::vector<VirtAddr>& steps = steps_.emplace_back();
    for (const StubStep& step : stub.steps) {
      steps.push_back(next_);
      if (step.sled) {
        const SledBytes sled = sled_bytes(kind_, step.guarded);
        const std::int64_t lower = stub.lower + (step.guarded ? kRedZone : 0);
        result_.sites[step.sled->value] = {VirtAddr{next_.value + sled.note}, lower};
        append(sled.bytes);
      }
      if (!step.keeps_instruction()) continue;
      CodeInstruction code = step.instruction;
      if (step.aim) code.target = steps_[step.aim->stub][step.aim->step];
      const ByteView bytes = file_.bytes_at(code.address, code.size);
      const auto moved = displace(code, bytes, next_);
      if (!moved) return tl::unexpected(moved.error());
      append(*moved);
    }
    if (stub.resume) {
      const auto jump = encode_jump(next_, *stub.resume);
      if (!jump) return tl::unexpected(jump.error());
      append(*jump);
    }
    EmittedStub emitted{start, Size{result_.code.size() - from}, {}};
    VirtAddr at = start;
    for (const Part& part : parts_of(stub, kind_)) {
      emitted.unwind.pieces.push_back({at, Size{part.size}, part.original, part.lower});
      at.value += part.size;
    }
    if (at != next_) return fail(ErrorCode::internal, "", "a stub has another size than planned");
    result_.stubs.push_back(std::move(emitted));
    return {};
  }

  void append(const Bytes& bytes) {
    result_.code.insert(result_.code.end(), bytes.begin(), bytes.end());
    next_.value += bytes.size();
  }

  Result<Bytes> patch_bytes(const Patch& patch) const {
    Bytes bytes;
    switch (patch.form) {
      case Patch::Form::jump: {
        auto jump = encode_jump(patch.at, result_.stubs[patch.stub].start);
        if (!jump) return jump;
        bytes = std::move(*jump);
        break;
      }
      case Patch::Form::relative:
        return encode_relative(VirtAddr{patch.at.value + 4}, steps_[patch.stub][patch.step]);
      case Patch::Form::hop: {
        const std::uint64_t distance = patch.hole.value - patch.at.value - 2;
        bytes = {kShort, std::byte{static_cast<std::uint8_t>(distance)}};
        break;
      }
      case Patch::Form::sled: {
        bytes = sled_bytes(kind_, false).bytes;
        const Bytes rest = filler_nops(patch.size.value - bytes.size());
        bytes.insert(bytes.end(), rest.begin(), rest.end());
        break;
      }
    }
    // Nothing gets there; if something did, it must not compute with half an instruction.
    bytes.resize(static_cast<std::size_t>(patch.size.value), kTrap);
    return bytes;
  }

  const ElfFile& file_;
  const SledPlan& plan_;
  SledKind kind_;
  VirtAddr next_;
  std::vector<std::vector<VirtAddr>> steps_;  // of each stub, where each step begins
  EmittedSleds result_;
};

}  // namespace

Size stubs_size(const SledPlan& plan, SledKind kind) {
  Size size{};
  for (const StubPlan& stub : plan.stubs) size.value += size_of(stub, kind) + kMostShift;
  return size;
}

Result<EmittedSleds> emit_sleds(const ElfFile& file, const SledPlan& plan, SledKind kind,
                                VirtAddr at) {
  return Emitter(file, plan, kind, at).run();
}

std::vector<StubPiece> stub_pieces(const StubPlan& stub, SledKind kind) {
  std::vector<StubPiece> pieces;
  for (const Part& part : parts_of(stub, kind)) {
    pieces.push_back({VirtAddr{}, Size{part.size}, part.original, part.lower});
  }
  return pieces;
}

}  // namespace reprobe
