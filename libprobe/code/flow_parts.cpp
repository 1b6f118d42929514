#include "libprobe/code/flow_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <unordered_set>
#include <utility>

#include "libprobe/code/flow_kept.hpp"
#include "libprobe/code/jump_table.hpp"
#include "libprobe/code/lsda.hpp"
#include "libprobe/code/part_set.hpp"

namespace reprobe {
namespace {

// A table makes other jumps reachable, whose tables do the same.
constexpr unsigned kMostRounds = 16;
constexpr std::uint64_t kPointer = 8;
// Words of a table of labels that follow each other and lead to other parts of the function.
constexpr unsigned kMostOthers = 4;

bool is_call(const CodeInstruction& code) {
  return code.kind == InstructionKind::call || code.kind == InstructionKind::indirect_call;
}

bool is_boundary(std::span<const CodeInstruction> code, VirtAddr address) {
  return std::ranges::binary_search(code, address, {}, &CodeInstruction::address);
}

class PartFinder {
 public:
  PartFinder(const ElfFile& file, const CodeRanges& ranges, const PartsQuestion& question)
      : file_(file),
        ranges_(ranges),
        question_(question),
        set_(ranges, *question.budget, *question.callees) {}

  FunctionParts run() {
    set_.parts.push_back({question_.range, {}, question_.code, {}, question_.entered_by_calls, {}});
    take_references();
    take_short_jumps();
    close_over_parts();
    for (unsigned round = 0; set_.why_incomplete().empty(); ++round) {
      if (round == kMostRounds) {
        set_.missing("jump tables that lead to ever more jump tables");
        break;
      }
      if (!follow_tables()) break;
      close_over_parts();
    }
    if (set_.why_incomplete().empty()) report_not_understood();
    take_kept();
    out_.why_incomplete = set_.why_incomplete();
    return std::move(out_);
  }

 private:
  // Something jumps there from a part or out of a table.
  void jump_to(VirtAddr target) {
    if (set_.part_of(target) != nullptr) return;
    // Where a weak undefined symbol is 0: nothing comes back from there.
    const Segment* segment = file_.load_segment(target);
    if (segment == nullptr || (segment->flags & PF_X) == 0) return;
    if (ranges_.is_function(target) || ranges_.is_linkage(target)) return;
    set_.reach(target);
  }

  void target(VirtAddr address, TargetKinds kind) {
    if (question_.range.contains(address)) out_.targets.push_back({address, kind});
  }

  void take_references() {
    for (const CodeUse& use : question_.uses) {
      if (use.kind != CodeUseKind::distance || use.target <= question_.range.start) continue;
      target(use.target, kTargetDistance);
      // As a word that holds the address. Most are entries of tables, which count from elsewhere.
      set_.arrive(use.target, Arrival::indirect);
    }
    for (const Reference& r : question_.references) {
      const bool inside = r.target != question_.range.start;
      if (r.target >= question_.range.end) continue;  // of interest to find_kept_code()
      switch (r.kind) {
        case ReferenceKind::branch:
        case ReferenceKind::call:
        case ReferenceKind::lea:
          if (!question_.range.contains(r.source)) take_code_reference(r);
          break;
        case ReferenceKind::relocation:
          target(r.target, kTargetRelocation);
          if (inside) set_.arrive(r.target, Arrival::indirect);
          break;
        case ReferenceKind::word:
          if (const auto* code = set_.holder_of(r.source);
              code && !states_address(*code, r.target) && !may_be_misread(r, *code))
            break;
          target(r.target, kTargetWord);
          if (inside) set_.arrive(r.target, Arrival::indirect);
          break;
        case ReferenceKind::symbol:
          target(r.target, kTargetSymbol);
          if (inside) set_.arrive(r.target, Arrival::unknown);
          break;
      }
    }
  }

  enum class Known : std::uint8_t { no, maybe, yes };

  // Is the reference, found at its opcode's bytes, an instruction of the code? Where the code may
  // be read from the wrong byte on, it may be one.
  Known is_instruction(std::span<const CodeInstruction> code, const Reference& r) {
    const auto after = std::ranges::upper_bound(code, r.source, {}, &CodeInstruction::address);
    if (after == code.begin()) return Known::no;
    const CodeInstruction& holder = *std::prev(after);
    if (holder.target == r.target || holder.rip_target == r.target) return Known::yes;
    return set_.is_surely_read(code, holder) ? Known::no : Known::maybe;
  }

  bool may_be_misread(const Reference& r, const CodeInstruction& holder) {
    return is_boundary(question_.code, r.target) &&
           !set_.is_surely_read(set_.function_at(r.source), holder);
  }

  // Found by its bytes: where the code around it is known, it has to be an instruction.
  void take_code_reference(const Reference& r) {
    const bool inside = r.target != question_.range.start;
    // Tail calls of a function that is known to be one need no look.
    if (!inside && (question_.entered_by_calls || r.kind != ReferenceKind::branch)) {
      if (r.kind == ReferenceKind::branch) target(r.target, kTargetForeign);
      return;
    }
    const auto range = ranges_.find(r.source);
    Known known = Known::yes;
    if (const Part* part = set_.part_of(r.source)) {
      known = is_instruction(part->code, r);
    } else if (range) {
      const auto code = set_.look_at(*range);
      if (!code.empty()) known = is_instruction(code, r);
    }
    if (known == Known::maybe && !is_boundary(question_.code, r.target)) known = Known::no;
    if (known == Known::no) return;
    const bool lea = r.kind == ReferenceKind::lea;
    target(r.target, lea ? kTargetLea : kTargetForeign);
    if (inside) set_.arrive(r.target, lea ? Arrival::indirect : Arrival::unknown);
    const bool part = range && known == Known::yes && r.kind != ReferenceKind::call;
    if (part) set_.reach(r.source);
  }

  // Jumps with an 8-bit displacement from the code around the function, as hand-written assembly
  // has them.
  void take_short_jumps() {
    constexpr std::uint64_t reach = 2 + 128;
    const CodeRange& range = question_.range;
    const std::uint64_t before = range.start.value - std::min(range.start.value, reach);
    short_jumps_in({VirtAddr{before}, range.start});
    if (const auto behind = checked_add(range.end.value, reach))
      short_jumps_in({range.end, VirtAddr{*behind}});
  }

  void short_jumps_in(const CodeRange& around) {
    const ByteView bytes =
        file_.bytes_at(around.start, Size{around.end.value - around.start.value});
    for (std::size_t i = 0; i + 2 <= bytes.size(); ++i) {
      const unsigned opcode = std::to_integer<unsigned>(bytes[i]);
      const bool jump = (opcode & 0xf0) == 0x70 || (opcode & 0xfc) == 0xe0 || opcode == 0xeb;
      if (!jump) continue;
      const std::uint64_t byte = std::to_integer<std::uint64_t>(bytes[i + 1]);
      const VirtAddr source{around.start.value + i};
      const VirtAddr to{source.value + 2 + ((byte ^ 0x80) - 0x80)};
      if (to > question_.range.start && to < question_.range.end)
        take_code_reference({to, source, ReferenceKind::branch});
    }
  }

  void close_over_parts() {
    for (; closed_ < set_.parts.size() && set_.why_incomplete().empty(); ++closed_) {
      for (std::size_t i = 0; i < set_.parts[closed_].code.size(); ++i) {
        const CodeInstruction& code = set_.parts[closed_].code[i];
        const auto to = code.target;
        if (set_.returns_elsewhere(code)) {
          set_.missing(fmt::format("what it calls at {:#x} returns elsewhere", code.address.value));
        }
        if (!to || is_call(code) || set_.parts[closed_].range.contains(*to)) continue;
        if (const auto thunk = thunk_at(*to)) {
          set_.parts[closed_].stack_jumps.push_back({i, thunk->reg, i});
          continue;
        }
        // clang -O0: an empty block at the end, which is never reached.
        if (*to == set_.parts[closed_].range.end && !ranges_.find(*to)) continue;
        jump_to(*to);
        set_.arrive(*to, Arrival::unknown);
      }
      Part& part = set_.parts[closed_];
      const auto jumps = returns_that_jump(part.code, part.entered_by_calls);
      part.stack_jumps.insert(part.stack_jumps.end(), jumps.begin(), jumps.end());
      take_landing_pads(part.range);
    }
  }

  // Code that makes an indirect jump of the jump to it, here or in a library.
  [[nodiscard]] std::optional<JumpThunk> thunk_at(VirtAddr target) const {
    if (ranges_.imports_thunks() && ranges_.is_linkage(target)) return JumpThunk{};
    return jump_thunk(ranges_, target);
  }

  void take_landing_pads(const CodeRange& range) {
    const auto& unwind = ranges_.unwind();
    if (!unwind) return;
    auto fdes = unwind->starting_in(range.start, range.end);
    const auto first = unwind->find(range.start);
    if (first && first->start != range.start) fdes.push_back(*first);
    for (const Fde& fde : fdes) {
      if (fde.start > question_.range.start) target(fde.start, kTargetFde);
      const auto sites = call_sites(file_, fde);
      if (!sites) {
        set_.missing(fmt::format("the LSDA of the code at {:#x} cannot be read", fde.start.value));
        return;
      }
      for (const CallSite& site : *sites) {
        if (!site.pad) continue;
        // A signal handler may throw from what faults there (-fnon-call-exceptions).
        if (const auto end = checked_add(site.start.value, site.size.value))
          out_.kept.push_back({site.start, VirtAddr{*end}, KeptHow::faults,
                               "an instruction whose fault a landing pad may catch"});
        target(*site.pad, kTargetLandingPad);
        if (set_.part_of(*site.pad) == nullptr) set_.reach(*site.pad);
        set_.arrive(*site.pad, Arrival::unknown);
      }
    }
  }

  // Labels whose address the parts themselves take, and those that are marked as reached by
  // indirect branches.
  void take_labels() {
    for (const Part& part : set_.parts) {
      for (const CodeInstruction& code : part.code) {
        if (code.kind == InstructionKind::endbr && code.address != part.range.start) {
          target(code.address, kTargetEndbr);
          set_.arrive(code.address, Arrival::indirect);
        }
        if (is_call(code) && code.target && *code.target != part.range.start &&
            set_.part_of(*code.target) != nullptr) {
          target(*code.target, kTargetBranch);
          set_.arrive(*code.target, Arrival::unknown);
        }
        if (code.is_lea() && code.rip_target && set_.part_of(*code.rip_target) != nullptr) {
          target(*code.rip_target, kTargetLea);
          set_.arrive(*code.rip_target, Arrival::indirect);
        }
      }
    }
  }

  // The address of the function itself is no label: at -O0 its functions' pointers are everywhere.
  [[nodiscard]] bool is_label_in_data(const Reference& r) const {
    const bool data = r.kind == ReferenceKind::relocation || r.kind == ReferenceKind::word;
    return data && r.target != question_.range.start && r.target != question_.range.end;
  }

  // Tables of all parts. True where they led to something new.
  bool follow_tables() {
    not_understood_.clear();
    label_tables_.clear();
    take_labels();
    std::vector<CodeRange> ranges;
    for (const Part& part : set_.parts) ranges.push_back(part.range);
    std::vector<TableTarget> targets;
    std::vector<VirtAddr> through_memory;
    bool adds_to_labels = false;
    bool adds_to_loaded = false;
    const bool labels_in_data = std::ranges::any_of(
        question_.references, [&](const Reference& r) { return is_label_in_data(r); });
    for (Part& part : set_.parts) {
      sort_arrivals(part.arrivals);
      IndirectJumps jumps =
          follow_indirect_jumps({&file_, part.code, part.arrivals, part.entered_by_calls, ranges,
                                 [this](VirtAddr address) { return may_be_case(address); },
                                 part.stack_jumps, labels_in_data});
      take_label_tables(jumps);
      const auto append = [](auto& to, const auto& from) {
        to.insert(to.end(), from.begin(), from.end());
      };
      append(targets, jumps.targets);
      append(not_understood_, jumps.not_understood);
      append(through_memory, jumps.through_memory);
      adds_to_labels |= jumps.adds_to_labels;
      adds_to_loaded |= jumps.adds_to_loaded;
    }
    // A label that stands in a table of labels is not loaded to compute from it.
    const bool bases_in_data = std::ranges::any_of(question_.references, [&](const Reference& r) {
      return is_label_in_data(r) &&
             std::ranges::none_of(label_tables_,
                                  [&](const CodeRange& table) { return table.contains(r.source); });
    });
    if (adds_to_labels || (adds_to_loaded && bases_in_data))
      not_understood_.insert(not_understood_.end(), through_memory.begin(), through_memory.end());
    return take_table_targets(targets);
  }

  // Words that a jump reads are labels; of a table of whole addresses all that follow each other.
  void take_label_tables(const IndirectJumps& jumps) {
    label_tables_.insert(label_tables_.end(), jumps.tables.begin(), jumps.tables.end());
    if (jumps.pointer_tables.empty()) return;
    std::unordered_set<std::uint64_t> sources;
    for (const Reference& r : question_.references) sources.insert(r.source.value);
    for (const VirtAddr table : jumps.pointer_tables) {
      VirtAddr end = table;
      unsigned others = 0;
      for (VirtAddr word = table; others <= kMostOthers; word.value += kPointer) {
        others = sources.contains(word.value) || leads_to_part(word) ? 0 : others + 1;
        if (others == 0) end = VirtAddr{word.value + kPointer};
      }
      if (end > table) label_tables_.push_back({table, end});
    }
  }

  // Of a whole address that stands in the file: one that the loader writes may stand elsewhere.
  [[nodiscard]] bool leads_to_part(VirtAddr word) {
    const ByteView bytes = file_.bytes_at(word, Size{kPointer});
    if (bytes.size() < kPointer) return false;
    return set_.part_of(VirtAddr{load_uint(bytes, 0, kPointer, file_.header().order)}) != nullptr;
  }

  void take_kept() {
    const bool jumps = std::ranges::any_of(set_.parts, [](const Part& part) {
      return !part.stack_jumps.empty() ||
             std::ranges::any_of(part.code, [](const CodeInstruction& code) {
               return code.kind == InstructionKind::indirect_jump;
             });
    });
    const VirtAddr end = question_.range.end;
    const auto next = ranges_.find(end);
    FoundKept found = find_kept_code({question_.range, question_.code, question_.references,
                                      question_.uses, label_tables_, jumps,
                                      ranges_.is_function(end) || (next && next->start == end),
                                      [this](VirtAddr at) { return set_.holder_of(at); },
                                      [this](VirtAddr at) { return set_.function_at(at); },
                                      [this](VirtAddr at) { return set_.part_of(at) != nullptr; }});
    out_.kept.insert(out_.kept.end(), found.kept.begin(), found.kept.end());
    out_.holds_data = found.holds_data;
  }

  bool take_table_targets(std::span<const TableTarget> targets) {
    if (!set_.spend(targets.size() * sizeof(std::uint32_t))) return false;
    bool news = false;
    for (const TableTarget& t : targets) {
      if (!table_targets_.insert(t.address.value).second) continue;
      news = true;
      target(t.address, kTargetTable);
      jump_to(t.address);
      set_.arrive(t.address, Arrival::indirect);
    }
    return news;
  }

  // A case is an instruction of the function or of a part of it. Parts are known as such where
  // there are symbols, and described by FDEs where the function is.
  [[nodiscard]] bool may_be_case(VirtAddr address) {
    if (const Part* part = set_.part_of(address)) return is_boundary(part->code, address);
    const auto range = ranges_.find(address);
    if (!range || (question_.entered_by_calls && ranges_.is_function(range->start))) return false;
    return is_boundary(set_.look_at(*range), address);
  }

  void report_not_understood() {
    if (not_understood_.empty()) return;
    const VirtAddr jump = not_understood_.front();
    set_.missing(fmt::format("indirect jump at {:#x} that was not understood", jump.value));
  }

  const ElfFile& file_;
  const CodeRanges& ranges_;
  const PartsQuestion& question_;
  PartSet set_;
  std::size_t closed_{};  // parts whose jumps and landing pads were followed
  std::unordered_set<std::uint64_t> table_targets_;
  std::vector<VirtAddr> not_understood_;
  std::vector<CodeRange> label_tables_;
  FunctionParts out_;
};

}  // namespace

FunctionParts find_parts(const ElfFile& file, const CodeRanges& ranges,
                         const PartsQuestion& question) {
  return PartFinder(file, ranges, question).run();
}

}  // namespace reprobe
