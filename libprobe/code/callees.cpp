#include "libprobe/code/callees.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "libprobe/elf/dynamic_tables.hpp"

namespace reprobe {
namespace {

constexpr std::uint32_t R_X86_64_GLOB_DAT = 6, R_X86_64_JUMP_SLOT = 7;
constexpr RegisterSet kStaticChain = 1U << 10;
constexpr std::size_t kLongestBody = 8192;  // instructions of one callee
constexpr std::size_t kMostCalleeStates = 4 * kLongestBody;
constexpr unsigned kDeepestCallees = 12;  // callees of callees
constexpr std::uint64_t kFewestCalleeSteps = std::uint64_t{1} << 20;

// Functions of C and C++ libraries that are declared not to return: C17 7.22.4, POSIX, the
// Itanium C++ ABI, LSB ("__stack_chk_fail", "__assert_fail").
constexpr auto kNeverReturn = std::to_array<std::string_view>({"_Exit",
                                                               "_Unwind_Resume",
                                                               "__assert_fail",
                                                               "__assert_perror_fail",
                                                               "__chk_fail",
                                                               "__cxa_bad_cast",
                                                               "__cxa_bad_typeid",
                                                               "__cxa_call_unexpected",
                                                               "__cxa_pure_virtual",
                                                               "__cxa_rethrow",
                                                               "__cxa_throw",
                                                               "__cxa_throw_bad_array_new_length",
                                                               "__fortify_fail",
                                                               "__longjmp_chk",
                                                               "__stack_chk_fail",
                                                               "_exit",
                                                               "_longjmp",
                                                               "abort",
                                                               "err",
                                                               "errx",
                                                               "exit",
                                                               "longjmp",
                                                               "pthread_exit",
                                                               "quick_exit",
                                                               "siglongjmp",
                                                               "verr",
                                                               "verrx",
                                                               "_ZSt9terminatev",
                                                               "_ZSt17__throw_bad_allocv",
                                                               "_ZSt20__throw_length_errorPKc",
                                                               "_ZSt19__throw_logic_errorPKc",
                                                               "_ZSt20__throw_out_of_rangePKc",
                                                               "_ZSt24__throw_out_of_range_fmtPKcz",
                                                               "_ZSt16__throw_bad_castv",
                                                               "_ZSt25__throw_bad_function_callv",
                                                               "_ZSt20__throw_system_errori"});
constexpr auto kReturnTwice = std::to_array<std::string_view>(
    {"setjmp", "_setjmp", "sigsetjmp", "__sigsetjmp", "vfork", "getcontext", "savectx"});

template <std::size_t N>
bool is_one_of(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

bool opcode_in(const CodeInstruction& code, unsigned first, unsigned last) {
  const X86Encoding& e = code.encoding;
  return e.map == OpcodeMap::one_byte && e.opcode >= first && e.opcode <= last;
}

// The register that push or a mov to the frame saves, or pop or a mov from the frame gives back.
std::optional<unsigned> moved_with_frame(const CodeInstruction& code, unsigned push, unsigned mov) {
  if (opcode_in(code, push, push + 7)) return code.encoding.opcode_register;
  const bool frame = code.memory && !code.memory->index && !code.memory->segment &&
                     (code.memory->base == kRsp || code.memory->base == kRbp);
  if (opcode_in(code, mov, mov) && code.encoding.rex_w && frame) return code.encoding.reg;
  return std::nullopt;
}
std::optional<unsigned> saved_by(const CodeInstruction& code) {
  return moved_with_frame(code, 0x50, 0x89);
}
std::optional<unsigned> restored_by(const CodeInstruction& code) {
  if (opcode_in(code, 0xc9, 0xc9)) return kRbp;  // leave
  return moved_with_frame(code, 0x58, 0x8b);
}

// xor %r,%r and sub %r,%r give 0 whatever it was.
bool only_clears(const CodeInstruction& code) {
  const X86Encoding& e = code.encoding;
  return (opcode_in(code, 0x31, 0x31) || opcode_in(code, 0x33, 0x33) ||
          opcode_in(code, 0x29, 0x29)) &&
         e.mod == 3 && e.reg == e.rm;
}

}  // namespace

RegisterSet results_of(const FunctionFlow& flow) {
  const Function& function = flow.function;
  if (function.name.empty() || function.name.find(".cold") != std::string::npos) return kResults;
  std::set<VirtAddr> seen{function.start};
  std::vector<VirtAddr> open{function.start};
  const auto go_to = [&](VirtAddr at) {
    if (seen.insert(at).second) open.push_back(at);
  };
  while (!open.empty()) {
    const CodeInstruction* code = flow.at(open.back());
    open.pop_back();
    if (code == nullptr || code->address >= flow.end()) continue;
    if (code->kind == InstructionKind::ret) return 0;
    if (is_any_call(*code) || code->opaque || (code->writes & (1U << kRax)) != 0) continue;
    if (code->target) go_to(*code->target);
    if (!code->ends_block()) go_to(code->end());
  }
  return kResults;
}

struct Callees::Body {
  std::map<std::uint64_t, CodeInstruction> code;  // what control may reach
  CallEffect effect{0, true, 0, false};
  RegisterSet saved{}, restored{};
};

Callees::Callees(const ElfFile& file, const CodeRanges& ranges)
    : file_(&file), ranges_(&ranges), budget_(file.source().size() + kFewestCalleeSteps) {
  for (const Section& section : file.sections()) {
    if (section.type != SHT_DYNSYM) continue;
    const auto symbols = file.symbol_table(section);
    if (!symbols) continue;
    for (std::uint32_t i = 1; i < symbols->size(); ++i) {
      const Symbol symbol = symbols->at(i);
      if (symbol.type == STT_FUNC && symbol.shndx != SHN_UNDEF)
        exported_.emplace(symbols->name(symbol), symbol.value);
    }
    for (const DynamicTable& table : dynamic_tables(file)) {
      if (table.kind != TableKind::rela) continue;
      for_each_relocation(file, table, [&](const DynamicRelocation& r) {
        if (r.type != R_X86_64_GLOB_DAT && r.type != R_X86_64_JUMP_SLOT) return;
        slots_[r.place.value] = std::string(symbols->name(symbols->at(r.symbol)));
      });
    }
  }
}

// The symbol to which an entry of the procedure linkage table leads; "" where it is none.
std::string Callees::imported(VirtAddr function) const {
  constexpr unsigned kMostInstructions = 3;
  for (unsigned i = 0; i < kMostInstructions; ++i) {
    const auto code = ranges_->decode_at(function);
    if (!code || code->opaque) return "";
    if (code->kind == InstructionKind::indirect_jump) {
      const auto slot = code->rip_target ? slots_.find(code->rip_target->value) : slots_.end();
      return slot == slots_.end() ? "" : slot->second;
    }
    if (code->kind != InstructionKind::endbr) return "";
    function = code->end();
  }
  return "";
}

bool Callees::returns_twice(const CodeInstruction& call) const {
  if (call.kind == InstructionKind::call && call.target)
    return is_one_of(kReturnTwice, imported(*call.target));
  const auto slot = call.rip_target ? slots_.find(call.rip_target->value) : slots_.end();
  return slot != slots_.end() && is_one_of(kReturnTwice, slot->second);
}

CallEffect Callees::effect(const CodeInstruction& call) {
  if (call.kind == InstructionKind::call && call.target) return effect_at(*call.target);
  const auto slot = call.rip_target ? slots_.find(call.rip_target->value) : slots_.end();
  if (slot != slots_.end() && !slot->second.empty()) return external(slot->second);
  CallEffect unknown;
  unknown.read |= kStaticChain;
  return unknown;
}

// Which file's function it is, is not known before the program runs. They have one prototype: a
// register that the file's own function does not look at holds no argument that means something.
CallEffect Callees::external(const std::string& name) {
  CallEffect effect;
  effect.returns = !is_one_of(kNeverReturn, name);
  const auto own = exported_.find(name);
  if (own != exported_.end()) effect.read &= read_function(own->second).read;
  return effect;
}

CallEffect Callees::effect_at(VirtAddr function) {
  if (ranges_->is_linkage(function)) return external(imported(function));
  return read_function(function);
}

// The results are those of the last function: of one that may be another file's, which no compiler
// sees into, nothing is left over.
RegisterSet Callees::passed_by_jump(VirtAddr function, RegisterSet results) {
  return effect_at(function).read | (ranges_->is_linkage(function) ? 0 : results);
}

CallEffect Callees::read_function(VirtAddr start) {
  const auto known = known_.find(start.value);
  if (known != known_.end()) return known->second;
  // Of itself, through others, and where there is too much: what is certain of any function.
  const CallEffect anything{0, false, kArguments | kStaticChain, true};
  if (depth_ == kDeepestCallees || budget_ == 0) return anything;
  known_[start.value] = anything;
  ++depth_;
  Body body = read_body(start);
  CallEffect effect = body.effect;
  const RegisterSet given_back = body.saved & body.restored & (kCalleeSaved | 1U << kRbp);
  effect.written &= ~given_back;
  effect.read = effect.complete ? arguments_read(body, start) : kArguments | kStaticChain;
  --depth_;
  known_[start.value] = effect;
  return effect;
}

Callees::Body Callees::read_body(VirtAddr start) {
  Body body;
  std::vector<VirtAddr> open{start};
  const auto lose_track = [&] {
    body.effect.complete = false;
    body.effect.returns = true;
  };
  while (!open.empty()) {
    const VirtAddr at = open.back();
    open.pop_back();
    if (body.code.contains(at.value)) continue;
    const auto code = ranges_->decode_at(at);
    if (!code || code->opaque || budget_ == 0 || body.code.size() == kLongestBody) {
      lose_track();
      continue;
    }
    --budget_;
    body.code[at.value] = *code;
    if (is_any_call(*code)) {
      walk_call(*code, body);
      if (effect(*code).returns) open.push_back(code->end());
      continue;
    }
    if (code->kind == InstructionKind::ret) body.effect.returns = true;
    if (code->kind == InstructionKind::indirect_jump) {
      lose_track();
      body.effect.written |= kCallClobbered;
    }
    const auto saved = saved_by(*code), restored = restored_by(*code);
    if (saved) body.saved |= 1U << *saved;
    if (restored) body.restored |= 1U << *restored;
    if (code->kind != InstructionKind::nop) body.effect.written |= code->writes & 0xffffU;
    if (code->target && ranges_->is_linkage(*code->target)) {
      walk_call(*code, body);
      if (effect_at(*code->target).returns) body.effect.returns = true;
    } else if (code->target) {
      open.push_back(*code->target);  // also of another function: a tail call
    }
    if (!code->ends_block()) open.push_back(code->end());
  }
  body.effect.written &= ~(1U << kRsp);
  return body;
}

// What a callee's own callee, or the function that it ends in, does.
void Callees::walk_call(const CodeInstruction& call, Body& body) {
  const CallEffect nested = is_any_call(call) ? effect(call) : effect_at(*call.target);
  body.effect.written |= nested.written;
  body.effect.complete = body.effect.complete && nested.complete;
}

// Registers that it reads before it has written them. That it saves a register is no use of it.
RegisterSet Callees::arguments_read(const Body& body, VirtAddr start) {
  RegisterSet read = 0;
  std::vector<std::pair<std::uint64_t, RegisterSet>> open{{start.value, 0xffffU}};
  std::set<std::pair<std::uint64_t, RegisterSet>> seen;
  const auto go_to = [&](VirtAddr at, RegisterSet unwritten) {
    if (unwritten != 0 && seen.emplace(at.value, unwritten).second)
      open.emplace_back(at.value, unwritten);
  };
  while (!open.empty()) {
    // Not a structured binding: clang 14 takes none into a lambda.
    const std::uint64_t at = open.back().first;
    const RegisterSet unwritten = open.back().second;
    open.pop_back();
    if (seen.size() > kMostCalleeStates) return kArguments | kStaticChain;
    const auto found = body.code.find(at);
    if (found == body.code.end()) continue;
    const CodeInstruction& code = found->second;
    RegisterSet left = unwritten;
    const auto take = [&](const CallEffect& nested) {
      read |= nested.read & unwritten;
      left &= ~nested.written;
      return nested.returns;
    };
    bool goes_on = true;
    if (is_any_call(code)) {
      read |= code.reads & unwritten;
      goes_on = take(effect(code));
    } else if (code.kind != InstructionKind::ret && code.kind != InstructionKind::nop) {
      if (code.target && ranges_->is_linkage(*code.target)) take(effect_at(*code.target));
      const auto saved = saved_by(code);
      const bool saves = saved && (kCalleeSaved >> *saved & 1) != 0;
      if (!only_clears(code) && !saves) read |= code.reads & unwritten;
      left &= ~code.writes;
    }
    if (code.target && !is_any_call(code)) go_to(*code.target, left);
    if (goes_on && !code.ends_block()) go_to(code.end(), left);
  }
  return read & ~(1U << kRsp);
}

}  // namespace reprobe
