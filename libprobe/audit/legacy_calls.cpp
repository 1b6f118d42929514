#include "libprobe/audit/legacy_calls.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "libprobe/code/decoder.hpp"
#include "libprobe/code/flow.hpp"
#include "libprobe/code/true_branches.hpp"
#include "libprobe/code/value_origin.hpp"
#include "libprobe/elf/dynamic_tables.hpp"

namespace reprobe {
namespace {

constexpr unsigned kRsi = 6, kRdi = 7;
constexpr std::uint64_t kCallSize = 5, kSlotCallSize = 6;
constexpr std::uint64_t kLongestName = 4096;
constexpr Size kStub{16};
constexpr std::uint32_t R_X86_64_GLOB_DAT = 6, R_X86_64_JUMP_SLOT = 7;
// Instructions behind the call that are looked at for a use of its result.
constexpr std::size_t kMostSteps = 4096;

// getegid of x86-64, and the number that is none.
constexpr std::array<std::uint64_t, 2> kCallNumbers{0x6c, 0xbead};
constexpr std::array kCallForms{LegacyForm::kprobe1, LegacyForm::utrace1, LegacyForm::kprobe2};

// ff 15: call *disp32(%rip)
bool is_slot_call(ByteView bytes) {
  return bytes.size() >= kSlotCallSize && bytes[0] == std::byte{0xff} &&
         bytes[1] == std::byte{0x15};
}

// call rel32 at any offset of executable bytes, whose target is syscall(), and call *slot(%rip) of
// code that was compiled with -fno-plt.
std::vector<VirtAddr> possible_calls(const ElfFile& file, const SyscallTargets& targets) {
  constexpr std::byte kCall{0xe8};
  std::vector<VirtAddr> found;
  for (const Section& section : file.sections()) {
    if (!section.executable() || section.nobits()) continue;
    const auto bytes = file.contents(section);
    if (!bytes) continue;
    for (std::size_t i = 0; i + kCallSize <= bytes->size(); ++i) {
      const bool direct = (*bytes)[i] == kCall;
      if (!direct && !is_slot_call(bytes->subspan(i))) continue;
      const std::uint64_t size = direct ? kCallSize : kSlotCallSize;
      const auto distance = static_cast<std::int32_t>(static_cast<std::uint32_t>(
          load_uint(*bytes, i + static_cast<std::size_t>(size) - 4, 4, std::endian::little)));
      const std::uint64_t at = section.addr.value + i;
      const VirtAddr target{at + size + static_cast<std::uint64_t>(std::int64_t{distance})};
      if (direct ? targets.has(target) : targets.has_slot(target)) found.push_back(VirtAddr{at});
    }
  }
  std::ranges::sort(found);
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

// Arrivals of a function, as OriginFinder wants them.
std::vector<ArrivalPoint> arrivals_of(const FunctionFlow& flow) {
  constexpr TargetKinds kKnown = kTargetBranch | kTargetSite;
  std::vector<ArrivalPoint> arrivals;
  for (const CodeTarget& target : flow.targets) {
    const TargetKinds kinds = target.kinds & ~kKnown;
    if (kinds == 0) continue;
    arrivals.push_back(
        {target.address, kinds == kTargetTable ? Arrival::indirect : Arrival::unknown});
  }
  return arrivals;
}

// Which instructions control may reach.
std::vector<bool> reached_code(const FunctionFlow& flow) {
  std::vector<bool> reached(flow.code.size());
  std::vector<std::size_t> open;
  const auto arrive = [&](const CodeInstruction* code) {
    if (code != nullptr) open.push_back(static_cast<std::size_t>(code - flow.code.data()));
  };
  arrive(flow.at(flow.function.start));
  for (const CodeTarget& target : flow.targets) {
    if ((target.kinds & ~(kTargetBranch | kTargetSite)) != 0) arrive(flow.at(target.address));
  }
  while (!open.empty()) {
    const std::size_t at = open.back();
    open.pop_back();
    if (at >= reached.size() || reached[at]) continue;
    reached[at] = true;
    const CodeInstruction& code = flow.code[at];
    const bool call = code.kind == InstructionKind::call;
    if (code.target && !call) arrive(flow.at(*code.target));
    if (!code.ends_block()) open.push_back(at + 1);
  }
  return reached;
}

// Does the instruction set rax whatever it was? A byte of it counts: code that goes on to use the
// others would have meant the result of the call.
bool sets_rax(const CodeInstruction& code) {
  if ((code.writes & (1U << kRax)) == 0) return false;
  const X86Encoding& e = code.encoding;
  if ((code.reads & (1U << kRax)) == 0) return true;
  const bool zeroes = e.map == OpcodeMap::one_byte && (e.opcode == 0x31 || e.opcode == 0x33) &&
                      e.mod == 3 && e.reg == kRax && e.rm == kRax && e.has_modrm();
  const bool setcc =
      e.map == OpcodeMap::map_0f && e.opcode >= 0x90 && e.opcode <= 0x9f && e.mod == 3;
  // clang counts the vector registers of a call with variable arguments so: mov $1,%al
  const bool byte = e.map == OpcodeMap::one_byte && e.opcode == 0xb0;
  return zeroes || setcc || byte;
}

class CallReader {
 public:
  CallReader(const ElfFile& file, const LegacyScan& scan, const CodeRanges& ranges,
             LegacyCalls& out)
      : file_(file), ranges_(ranges), callees_(file, ranges), out_(out) {
    for (std::size_t i = 0; i < scan.records.size(); ++i) {
      const LegacyRecord& record = scan.records[i];
      if (record.is_call()) records_[{record.form, record.name}].push_back(i);
    }
    scan_ = &scan;
  }

  void read(const FunctionFlow& flow, std::span<const VirtAddr> sites) {
    const auto arrivals = arrivals_of(flow);
    CodePiece piece;  // outlives the finder
    piece.file = &file_;
    piece.code = flow.code;
    piece.arrivals = arrivals;
    OriginFinder origins(piece);
    const std::vector<bool> reached = reached_code(flow);
    for (const VirtAddr site : sites) read(flow, origins, reached, site);
  }

 private:
  void read(const FunctionFlow& flow, OriginFinder& origins, const std::vector<bool>& reached,
            VirtAddr site) {
    const CodeInstruction* call = flow.at(site);
    if (call == nullptr || legacy_call_size(*call) == 0) return;  // bytes of another one
    const auto at = static_cast<std::size_t>(call - flow.code.data());
    const auto magic = constant(origins, at, kRdx);
    const auto form = magic ? form_of_magic(*magic) : std::nullopt;
    if (!form && passes_magic(origins, at)) {
      return refuse(site, "", "control may arrive at it from elsewhere");
    }
    if (!form) return;  // another use of syscall()
    const auto number = constant(origins, at, kRdi);
    if (!number || !is_call_number(*number)) {
      return refuse(site, "", "the number of the call is none of the headers'");
    }
    const auto name_at = constant(origins, at, kRsi);
    const std::string name = name_at ? text_at(VirtAddr{*name_at}) : "";
    if (name.empty()) return refuse(site, "", "which probe's name it passes is not known");
    const auto record = record_of(*form, name);
    if (!record) return refuse(site, name, "no record, or several that differ, have the name");
    if (!flow.complete) return refuse(site, name, flow.why_incomplete);
    if (flow.target_between(call->address, call->end())) {
      return refuse(site, name, "the call may be entered in its middle");
    }
    if (!reached[at]) return refuse(site, name, "nothing leads to the call");
    if (result_used(flow, at, ranges_, callees_))
      return refuse(site, name, "the call's result may be used");
    out_.calls.push_back({site, *record, call_arguments(scan_->records[*record].count)});
  }

  // The one value that the register has before the instruction, on every path.
  static std::optional<std::uint64_t> constant(OriginFinder& origins, std::size_t at,
                                               unsigned reg) {
    const auto found = origins.origins(at, reg);
    const auto same = [&](const ValueOrigin& origin) {
      return origin.kind == ValueOrigin::Kind::constant && origin.address == found[0].address;
    };
    if (found.empty() || !std::ranges::all_of(found, same)) return std::nullopt;
    return found[0].address.value;
  }

  // On some path it is a probe's call.
  static bool passes_magic(OriginFinder& origins, std::size_t at) {
    return std::ranges::any_of(origins.origins(at, kRdx), [](const ValueOrigin& origin) {
      return origin.kind == ValueOrigin::Kind::constant && form_of_magic(origin.address.value);
    });
  }

  [[nodiscard]] std::string text_at(VirtAddr address) const {
    const std::string_view text = as_text(file_.bytes_at(address, Size{kLongestName}));
    const auto end = text.find('\0');
    return std::string(end == std::string_view::npos ? "" : text.substr(0, end));
  }

  // The record of the name; of several they must say the same.
  [[nodiscard]] std::optional<std::size_t> record_of(LegacyForm form,
                                                     const std::string& name) const {
    const auto found = records_.find({form, name});
    if (found == records_.end()) return std::nullopt;
    const LegacyRecord& first = scan_->records[found->second.front()];
    const bool same = std::ranges::all_of(found->second, [&](std::size_t i) {
      const LegacyRecord& record = scan_->records[i];
      return record.provider == first.provider && record.count == first.count &&
             record.semaphore == first.semaphore;
    });
    // More arguments than the macros have would be an array of any length.
    constexpr std::uint64_t kMostArguments = 11;
    if (!same || first.count > kMostArguments) return std::nullopt;
    return found->second.front();
  }

  void refuse(VirtAddr site, std::string name, std::string reason) {
    out_.refused.push_back({site, std::move(name), std::move(reason)});
  }

  const ElfFile& file_;
  const CodeRanges& ranges_;
  Callees callees_;
  const LegacyScan* scan_{};
  LegacyCalls& out_;
  std::map<std::pair<LegacyForm, std::string>, std::vector<std::size_t>> records_;
};

}  // namespace

std::uint64_t legacy_call_size(const CodeInstruction& code) {
  const bool direct = code.kind == InstructionKind::call && code.size.value == kCallSize;
  const bool by_slot = code.kind == InstructionKind::indirect_call && code.rip_target &&
                       code.size.value == kSlotCallSize;
  return direct || by_slot ? code.size.value : 0;
}

bool SyscallTargets::has_slot(VirtAddr slot) const {
  return std::ranges::binary_search(slots_, slot);
}

SyscallTargets::SyscallTargets(const ElfFile& file) : file_(file) {
  constexpr std::string_view kName = "syscall";
  if (file.header().machine != EM_X86_64 || !file.header().is64) return;
  constexpr std::uint64_t DT_NEEDED = 1;
  const bool is_static = dynamic_entry(dynamic_entries(file), DT_NEEDED) == nullptr;
  for (const Section& section : file.sections()) {
    if (!section.holds_symbols()) continue;
    const auto symbols = file.symbol_table(section);
    if (!symbols) continue;
    for (std::uint32_t i = 1; i < symbols->size(); ++i) {
      const Symbol symbol = symbols->at(i);
      // Where the C library is another file, a syscall() of this one is the program's own.
      const bool own =
          symbol.type == STT_FUNC && symbol.binding != STB_LOCAL && symbol.in_section();
      if (own && is_static && symbols->name(symbol) == kName) functions_.push_back(symbol.value);
    }
    if (section.type != SHT_DYNSYM) continue;
    for (const DynamicTable& table : dynamic_tables(file)) {
      if (table.kind != TableKind::rela) continue;
      for_each_relocation(file, table, [&](const DynamicRelocation& relocation) {
        if (relocation.type != R_X86_64_GLOB_DAT && relocation.type != R_X86_64_JUMP_SLOT) return;
        const Symbol symbol = symbols->at(relocation.symbol);
        if (symbols->name(symbol) == kName) slots_.push_back(relocation.place);
      });
    }
  }
  for (auto* list : {&slots_, &functions_}) {
    std::ranges::sort(*list);
    list->erase(std::unique(list->begin(), list->end()), list->end());
  }
}

bool SyscallTargets::has(VirtAddr target) const {
  if (std::ranges::binary_search(functions_, target)) return true;
  // endbr64, bnd, a number for the resolver: then jmp *slot(%rip).
  const ByteView bytes = file_.bytes_at(target, kStub);
  bool likely = false;
  for (std::size_t i = 0; i + 6 <= bytes.size() && !likely; ++i) {
    if (bytes[i] != std::byte{0xff} || bytes[i + 1] != std::byte{0x25}) continue;
    const auto distance = static_cast<std::int32_t>(
        static_cast<std::uint32_t>(load_uint(bytes, i + 2, 4, std::endian::little)));
    const VirtAddr slot{target.value + i + 6 + static_cast<std::uint64_t>(std::int64_t{distance})};
    likely = std::ranges::binary_search(slots_, slot);
  }
  const auto decoder = likely ? Decoder::open(file_.header(), false) : std::nullopt;
  if (!decoder) return false;
  constexpr RegisterSet kR11 = 1U << 11;
  for (VirtAddr at = target; at.value - target.value < kStub.value;) {
    const auto code = decoder->decode_operands(file_.bytes_at(at, kStub), at);
    if (!code || code->opaque) return false;
    if (code->kind == InstructionKind::indirect_jump) {
      return code->rip_target && std::ranges::binary_search(slots_, *code->rip_target);
    }
    const bool harmless = code->kind == InstructionKind::endbr ||
                          code->kind == InstructionKind::nop ||
                          (code->kind == InstructionKind::other && !code->memory &&
                           code->reads == 0 && code->writes == kR11);
    if (!harmless) return false;
    at = code->end();
  }
  return false;
}

std::optional<LegacyForm> form_of_magic(std::uint64_t magic) {
  const auto found =
      std::ranges::find_if(kCallForms, [&](LegacyForm form) { return magic_of(form) == magic; });
  return found == kCallForms.end() ? std::nullopt : std::optional(*found);
}

bool is_call_number(std::uint64_t number) {
  return std::ranges::find(kCallNumbers, number) != kCallNumbers.end();
}

bool result_used(const FunctionFlow& flow, std::size_t call, const CodeRanges& ranges,
                 Callees& callees) {
  std::vector<std::size_t> open{call + 1};
  std::set<std::size_t> seen;
  while (!open.empty()) {
    const std::size_t at = open.back();
    open.pop_back();
    if (at >= flow.code.size() || !seen.insert(at).second) continue;
    if (seen.size() > kMostSteps) return true;
    const CodeInstruction& code = flow.code[at];
    if (code.opaque) return true;
    if (is_any_call(code)) {
      if ((code.reads & (1U << kRax)) != 0) return true;
      const CallEffect effect = callees.effect(code);
      const bool kept = (effect.written & (1U << kRax)) == 0;
      if (kept && effect.returns) open.push_back(at + 1);
      continue;
    }
    if (code.kind == InstructionKind::ret || code.kind == InstructionKind::trap ||
        sets_rax(code)) {
      continue;
    }
    // A long nop names registers and reads none.
    const bool nop = code.kind == InstructionKind::nop;
    if (!nop && (code.reads & (1U << kRax)) != 0) return true;
    if (code.kind == InstructionKind::indirect_jump) return true;
    if (code.target) {
      const VirtAddr to = *code.target;
      const CodeInstruction* target = flow.at(to);
      if (target != nullptr) open.push_back(static_cast<std::size_t>(target - flow.code.data()));
      // A part of the function that stands elsewhere is not followed.
      if (target == nullptr && !ranges.is_function(to) && !ranges.is_linkage(to)) return true;
    }
    if (!code.ends_block()) open.push_back(at + 1);
  }
  return false;
}

std::string call_arguments(std::uint64_t count) {
  if (count == 0) return "";
  if (count == 1) return "-8@%rcx";
  std::string text;
  for (std::uint64_t i = 0; i < count; ++i) {
    text += fmt::format("{}-8@{}(%rcx)", text.empty() ? "" : " ", 8 * i);
  }
  return text;
}

LegacyCalls find_legacy_calls(const ElfFile& file, const LegacyScan& scan) {
  LegacyCalls result;
  const bool wanted = std::ranges::any_of(scan.records, &LegacyRecord::is_call);
  if (!wanted) return result;
  const SyscallTargets targets(file);
  if (targets.empty()) return result;
  const auto sites = possible_calls(file, targets);
  const auto flows = FlowReader::open(file, sites);
  const auto ranges = CodeRanges::open(file);
  if (!flows || !ranges) return result;
  TrueBranches branches(file, flows->functions());
  CallReader reader(file, scan, *ranges, result);
  for (std::size_t i = 0; i < sites.size();) {
    auto flow = flows->function_of(sites[i]);
    if (!flow) {
      ++i;
      continue;
    }
    branches.keep(*flow);
    std::size_t next = i + 1;
    while (next < sites.size() && sites[next] < flow->end()) ++next;
    reader.read(*flow, std::span(sites).subspan(i, next - i));
    i = next;
  }
  return result;
}

}  // namespace reprobe
