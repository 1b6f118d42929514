#include "libprobe/code/cfi_rows.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "libprobe/code/cfi_opcodes.hpp"

namespace reprobe {
namespace {

using RuleKind = RegisterRule::Kind;

// Rules of all rows and of all remembered states together.
constexpr std::size_t kMaxRules = std::size_t{1} << 16;

class Machine {
 public:
  Machine(const ElfFile& file, const CfiCie& cie) : file_(&file), cie_(&cie) {}

  // The rows of the CIE's program: one, which is what DW_CFA_restore goes back to.
  bool run_initial() {
    if (!run(cie_->initial, VirtAddr{~std::uint64_t{0}}) || !result_.rows.empty()) return false;
    result_.initial = row_;
    initial_done_ = true;
    remembered_.clear();
    return true;
  }

  bool run_function(const CfiFde& fde) {
    const auto end = checked_add(fde.start.value, fde.size.value);
    if (!end) return refuse("its range wraps");
    at_ = fde.start;
    if (!run(fde.program, VirtAddr{*end})) return false;
    // Clang states the row behind a function's last jump; it holds nowhere.
    return (at_.value >= *end && !result_.rows.empty()) || add_row();
  }

  [[nodiscard]] const std::string& problem() const { return problem_; }
  [[nodiscard]] CfiRows take() { return std::move(result_); }

 private:
  bool refuse(std::string why) {
    problem_ = std::move(why);
    return false;
  }

  bool run(const CfiProgram& program, VirtAddr end) {
    cursor_.emplace(program.bytes, program.address, file_->header());
    while (!cursor_->rest().empty()) {
      const auto opcode = static_cast<unsigned>(*cursor_->fixed(1));
      if (!step(opcode)) {
        if (problem_.empty()) problem_ = "an instruction is cut off or makes no sense";
        return false;
      }
      if (at_ >= end) break;
    }
    return true;
  }

  bool step(unsigned opcode) {
    const unsigned operand = opcode & 0x3f;
    switch (opcode & 0xc0) {
      case DW_CFA_advance_loc:
        return advance(operand);
      case DW_CFA_offset:
        return factored_offset(operand, RuleKind::offset, cursor_->uleb128());
      case DW_CFA_restore:
        return restore(operand);
      default:
        return opcode < DW_CFA_def_cfa ? step_location_or_register(opcode) : step_other(opcode);
    }
  }

  bool step_location_or_register(unsigned opcode) {
    switch (opcode) {
      case DW_CFA_nop:
        return true;
      case DW_CFA_set_loc:
        return set_location(cursor_->pointer(cie_->pointer_encoding));
      case DW_CFA_advance_loc1:
        return advance(cursor_->fixed(1));
      case DW_CFA_advance_loc2:
        return advance(cursor_->fixed(2));
      case DW_CFA_advance_loc4:
        return advance(cursor_->fixed(4));
      case DW_CFA_remember_state:
        remembered_.push_back(row_);
        return count_rules();
      case DW_CFA_restore_state:
        return restore_state();
      default:
        break;
    }
    const auto reg = cursor_->uleb128();
    if (!reg) return false;
    switch (opcode) {
      case DW_CFA_offset_extended:
        return factored_offset(*reg, RuleKind::offset, cursor_->uleb128());
      case DW_CFA_restore_extended:
        return restore(*reg);
      case DW_CFA_undefined:
        return set(*reg, {RuleKind::undefined});
      case DW_CFA_same_value:
        return set(*reg, {RuleKind::same_value});
      default: {  // DW_CFA_register
        const auto other = cursor_->uleb128();
        return other && set(*reg, {RuleKind::in_register, static_cast<std::int64_t>(*other)});
      }
    }
  }

  bool step_other(unsigned opcode) {
    switch (opcode) {
      case DW_CFA_def_cfa:
      case DW_CFA_def_cfa_sf: {
        const auto reg = cursor_->uleb128();
        if (!reg) return false;
        return define_cfa(reg,
                          opcode == DW_CFA_def_cfa ? unfactored() : factored(cursor_->sleb128()));
      }
      case DW_CFA_def_cfa_register:
        return !row_.cfa.is_expression && define_cfa(cursor_->uleb128(), row_.cfa.offset);
      case DW_CFA_def_cfa_offset:
        return !row_.cfa.is_expression && define_cfa(row_.cfa.reg, unfactored());
      case DW_CFA_def_cfa_offset_sf:
        return !row_.cfa.is_expression && define_cfa(row_.cfa.reg, factored(cursor_->sleb128()));
      case DW_CFA_def_cfa_expression: {
        const auto expression = block();
        if (expression) row_.cfa = {.is_expression = true, .expression = *expression};
        return expression.has_value();
      }
      case DW_CFA_GNU_args_size: {
        const auto size = cursor_->uleb128();
        if (size) row_.args_size = *size;
        return size.has_value();
      }
      case DW_CFA_AARCH64_negate_ra_state:
        row_.return_signed = !row_.return_signed;
        return file_->header().machine == EM_AARCH64 || unknown(opcode);
      default:
        return step_register_rule(opcode);
    }
  }

  bool step_register_rule(unsigned opcode) {
    const auto reg = cursor_->uleb128();
    if (!reg) return false;
    switch (opcode) {
      case DW_CFA_offset_extended_sf:
        return factored_offset(*reg, RuleKind::offset, cursor_->sleb128());
      case DW_CFA_GNU_negative_offset_extended: {
        const auto value = cursor_->uleb128();
        return value && factored_offset(*reg, RuleKind::offset, std::uint64_t{0} - *value);
      }
      case DW_CFA_val_offset:
        return factored_offset(*reg, RuleKind::val_offset, cursor_->uleb128());
      case DW_CFA_val_offset_sf:
        return factored_offset(*reg, RuleKind::val_offset, cursor_->sleb128());
      case DW_CFA_expression:
      case DW_CFA_val_expression: {
        const auto expression = block();
        const RuleKind kind =
            opcode == DW_CFA_expression ? RuleKind::expression : RuleKind::val_expression;
        return expression && set(*reg, {kind, 0, *expression});
      }
      default:
        return unknown(opcode);
    }
  }

  bool unknown(unsigned opcode) { return refuse("unknown instruction " + std::to_string(opcode)); }

  // Offsets wrap like the consumers' additions do.
  template <typename T>
  std::optional<std::int64_t> factored(std::optional<T> value) const {
    if (!value) return std::nullopt;
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(*value) *
                                     static_cast<std::uint64_t>(cie_->data_alignment));
  }

  std::optional<std::int64_t> unfactored() {
    const auto value = cursor_->uleb128();
    if (!value) return std::nullopt;
    return static_cast<std::int64_t>(*value);
  }

  std::optional<ByteView> block() {
    const auto size = cursor_->uleb128();
    if (!size || *size > cursor_->rest().size()) return std::nullopt;
    const ByteView bytes = cursor_->rest().first(static_cast<std::size_t>(*size));
    if (!cursor_->skip(*size)) return std::nullopt;
    return bytes;
  }

  bool define_cfa(std::optional<std::uint64_t> reg, std::optional<std::int64_t> offset) {
    if (!reg || !offset) return false;
    row_.cfa = {.reg = *reg, .offset = *offset};
    return true;
  }

  bool set(std::uint64_t reg, const RegisterRule& rule) {
    row_.registers[reg] = rule;
    return true;
  }

  template <typename T>
  bool factored_offset(std::uint64_t reg, RuleKind kind, std::optional<T> value) {
    const auto offset = factored(value);
    return offset && set(reg, {kind, *offset});
  }
  bool factored_offset(std::uint64_t reg, RuleKind kind, std::uint64_t value) {
    return factored_offset(reg, kind, std::optional(value));
  }

  bool restore(std::uint64_t reg) {
    if (!initial_done_) return false;
    const auto rule = result_.initial.registers.find(reg);
    if (rule == result_.initial.registers.end()) {
      row_.registers.erase(reg);
      return true;
    }
    return set(reg, rule->second);
  }

  bool restore_state() {
    if (remembered_.empty()) return false;
    // libgcc (execute_cfa_program) keeps the size of the arguments out of the state.
    const std::uint64_t args_size = row_.args_size;
    row_ = std::move(remembered_.back());
    row_.args_size = args_size;
    remembered_.pop_back();
    return true;
  }

  bool advance(std::optional<std::uint64_t> delta) {
    const auto bytes = delta ? checked_mul(*delta, cie_->code_alignment) : std::nullopt;
    const auto next = bytes ? checked_add(at_.value, *bytes) : std::nullopt;
    return next && set_location(VirtAddr{*next});
  }

  bool set_location(std::optional<VirtAddr> next) {
    if (!next || *next < at_) return false;
    if (*next == at_) return true;
    if (!add_row()) return false;
    at_ = *next;
    return true;
  }

  bool add_row() {
    result_.rows.push_back({at_, row_});
    return count_rules();
  }

  bool count_rules() {
    result_.rules += 1 + row_.registers.size();
    return result_.rules <= kMaxRules || refuse("more rules than any compiler writes");
  }

  const ElfFile* file_;
  const CfiCie* cie_;
  std::optional<FrameCursor> cursor_;
  CfiRow row_;
  VirtAddr at_;
  bool initial_done_{};
  std::vector<CfiRow> remembered_;
  CfiRows result_;
  std::string problem_;
};

bool same_bytes(ByteView a, ByteView b) { return std::ranges::equal(a, b); }

}  // namespace

bool operator==(const RegisterRule& a, const RegisterRule& b) {
  return a.kind == b.kind && a.value == b.value && same_bytes(a.expression, b.expression);
}

bool operator==(const CfaRule& a, const CfaRule& b) {
  return a.reg == b.reg && a.offset == b.offset && a.is_expression == b.is_expression &&
         same_bytes(a.expression, b.expression);
}

const CfiRow& CfiRows::at(VirtAddr address) const {
  const auto after = std::ranges::upper_bound(rows, address, {}, &PlacedRow::start);
  return after == rows.begin() ? rows.front().row : std::prev(after)->row;
}

Result<CfiRows> read_rows(const ElfFile& file, const CfiCie& cie, const CfiFde& fde) {
  Machine machine(file, cie);
  if (!machine.run_initial() || !machine.run_function(fde)) {
    const std::string why = machine.problem().empty() ? "its CIE advances" : machine.problem();
    return fail(ErrorCode::refused, ".eh_frame", "call frame instructions: " + why);
  }
  return machine.take();
}

}  // namespace reprobe
