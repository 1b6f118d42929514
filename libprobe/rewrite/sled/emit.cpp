#include "libprobe/rewrite/sled/emit.hpp"

#include <algorithm>
#include <numeric>

#include "libprobe/rewrite/sled/displace.hpp"
#include "libprobe/rewrite/sled/sled_bytes.hpp"
#include "libprobe/rewrite/sled/slot_code.hpp"
#include "libprobe/rewrite/sled/stub_layout.hpp"

namespace reprobe {
namespace {

constexpr std::byte kTrap{0xcc};   // int3
constexpr std::byte kShort{0xeb};  // jmp rel8

// A piece of a stub with its length, before it has an address.
struct Part {
  std::uint64_t size{};
  VirtAddr original;
  std::int64_t lower{};
};

void add_parts(std::vector<Part>& parts, const std::vector<SlotPart>& of, VirtAddr original,
               std::int64_t lower) {
  for (const SlotPart& part : of) parts.push_back({part.size, original, lower + part.lower});
}

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
      if (kind == SledKind::slot)
        add_parts(parts, slot_test_parts(step.keeps_flags), here, stub.lower);
    }
    if (step.keeps_instruction()) {
      parts.push_back({displaced_size(step.instruction).value, here, stub.lower});
    }
  }
  // Behind a call's or jump's stub the rows are those of the call itself, which comes next.
  if (stub.resume) parts.push_back({kJumpSize, last, stub.lower});
  for (const StubStep& step : stub.steps) {
    if (step.sled && kind == SledKind::slot)
      add_parts(parts, slot_call_parts(step.keeps_flags), step.instruction.address, stub.lower);
  }
  return parts;
}

std::uint64_t step_size(const StubStep& step, SledKind kind) {
  std::uint64_t size = step.sled ? sled_bytes(kind, step.guarded).bytes.size() : 0;
  if (step.sled && kind == SledKind::slot) size += size_of(slot_test_parts(step.keeps_flags));
  if (step.keeps_instruction()) size += displaced_size(step.instruction).value;
  return size;
}

std::vector<StubSize> sizes_of(const SledPlan& plan, SledKind kind) {
  std::vector<StubSize> sizes;
  for (const StubPlan& stub : plan.stubs) {
    StubSize& size = sizes.emplace_back();
    for (const StubStep& step : stub.steps) {
      if (step.sled) size.notes.push_back(size.size + sled_bytes(kind, step.guarded).note);
      size.size += step_size(step, kind);
    }
    if (stub.resume) size.size += kJumpSize;
    for (const StubStep& step : stub.steps) {
      if (step.sled && kind == SledKind::slot)
        size.size += size_of(slot_call_parts(step.keeps_flags));
    }
  }
  return sizes;
}

class Emitter {
 public:
  Emitter(const ElfFile& file, const SledPlan& plan, SledKind kind, VirtAddr at)
      : file_(file),
        plan_(plan),
        kind_(kind),
        start_(at),
        next_(at),
        slot_{at.value - slots_size(plan, kind).value} {}

  Result<EmittedSleds> run() {
    place();
    result_.stubs.resize(plan_.stubs.size());
    std::vector<std::size_t> order(plan_.stubs.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::sort(order, {}, [&](std::size_t i) { return places_[i]; });
    for (const std::size_t i : order) {
      auto done = emit(i);
      if (!done) return tl::unexpected(done.error());
    }
    for (const Patch& patch : plan_.patches) {
      auto bytes = patch_bytes(patch);
      if (!bytes) return tl::unexpected(bytes.error());
      result_.patches.emplace_back(patch.at, std::move(*bytes));
      note_safety(patch);
    }
    return std::move(result_);
  }

 private:
  // Every stub and every step in it, before any is written: branches in one lead to another.
  void place() {
    places_ = lay_out(plan_, kind_, start_, sizes_of(plan_, kind_));
    for (std::size_t i = 0; i < places_.size(); ++i) {
      std::vector<VirtAddr>& steps = steps_.emplace_back();
      VirtAddr at = places_[i];
      for (const StubStep& step : plan_.stubs[i].steps) {
        steps.push_back(at);
        at.value += step_size(step, kind_);
      }
    }
  }

  void note_safety(const Patch& patch) {
    if (patch.boundaries == 0 || patch.form == Patch::Form::relative) return;
    const bool hop = patch.form == Patch::Form::hop;
    const bool sled = patch.form == Patch::Form::sled;
    if (!sled && survives_breakpoints(patch, hop ? patch.hole : places_[patch.stub])) return;
    if (sled) {
      result_.unsafe.insert(patch.at);
      return;
    }
    for (const StubStep& step : plan_.stubs[patch.owner].steps)
      if (step.sled) result_.unsafe.insert(*step.sled);
  }

  Result<void> emit(std::size_t index) {
    const StubPlan& stub = plan_.stubs[index];
    while (next_ < places_[index]) append({kTrap});
    const VirtAddr start = next_;
    const std::size_t from = result_.code.size();
    std::vector<OpenCall> calls;
    for (const StubStep& step : stub.steps) {
      if (step.sled) {
        const SledBytes sled = sled_bytes(kind_, step.guarded);
        const std::int64_t lower = stub.lower + (step.guarded ? kRedZone : 0);
        result_.sites[step.sled->value] = {VirtAddr{next_.value + sled.note}, lower};
        append(sled.bytes);
        if (kind_ == SledKind::slot) {
          if (auto done = test_slot(step, calls); !done) return done;
        }
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
    if (auto done = call_slots(calls); !done) return done;
    EmittedStub emitted{start, Size{result_.code.size() - from}, {}};
    VirtAddr at = start;
    for (const Part& part : parts_of(stub, kind_)) {
      emitted.unwind.pieces.push_back({at, Size{part.size}, part.original, part.lower});
      at.value += part.size;
    }
    if (at != next_) return fail(ErrorCode::internal, "", "a stub has another size than planned");
    result_.stubs[index] = std::move(emitted);
    return {};
  }

  // A test of a slot whose call comes behind the stub.
  struct OpenCall {
    std::size_t test{};  // offset in the code
    VirtAddr at, slot, back;
  };

  // The jump's distance is filled in by call_slots().
  Result<void> test_slot(const StubStep& step, std::vector<OpenCall>& calls) {
    const VirtAddr at = next_, slot = slot_;
    const std::size_t offset = result_.code.size();
    const auto test = slot_test(at, slot, step.keeps_flags, at);
    if (!test) return tl::unexpected(test.error());
    append(*test);
    slot_.value += kSlotSize;
    if (!step.keeps_flags) calls.push_back({offset, at, slot, next_});
    return {};
  }

  Result<void> call_slots(const std::vector<OpenCall>& calls) {
    for (const OpenCall& call : calls) {
      const auto test = slot_test(call.at, call.slot, false, next_);
      if (!test) return tl::unexpected(test.error());
      std::ranges::copy(*test, result_.code.begin() + static_cast<std::ptrdiff_t>(call.test));
      const auto bytes = slot_call(next_, call.slot, false, call.back);
      if (!bytes) return tl::unexpected(bytes.error());
      append(*bytes);
    }
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
      case Patch::Form::nops:
        return filler_nops(patch.size.value);
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
  VirtAddr start_;
  VirtAddr next_;
  VirtAddr slot_;                             // of the next site
  std::vector<VirtAddr> places_;              // of each stub
  std::vector<std::vector<VirtAddr>> steps_;  // of each stub, where each step begins
  EmittedSleds result_;
};

}  // namespace

Size slots_size(const SledPlan& plan, SledKind kind) {
  if (kind != SledKind::slot) return Size{0};
  std::uint64_t slots = 0;
  for (const StubPlan& stub : plan.stubs) {
    slots += static_cast<std::uint64_t>(
        std::ranges::count_if(stub.steps, [](const StubStep& s) { return s.sled.has_value(); }));
  }
  return Size{(slots * kSlotSize + kSlotPage - 1) / kSlotPage * kSlotPage};
}

Size stubs_size(const SledPlan& plan, SledKind kind) {
  return Size{most_room(plan, sizes_of(plan, kind))};
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
