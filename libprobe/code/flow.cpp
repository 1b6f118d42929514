#include "libprobe/code/flow.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "libprobe/code/code_uses.hpp"
#include "libprobe/code/flow_kept.hpp"
#include "libprobe/code/flow_parts.hpp"
#include "libprobe/code/flow_ranges.hpp"
#include "libprobe/code/flow_scan.hpp"

namespace reprobe {
namespace {

// Padding aligns the next function; compilers align to 64 at most.
constexpr std::uint64_t kLongestPadding = 64;
// What may be decoded and read of other code for all functions together, in file sizes.
constexpr std::uint64_t kBudget = 32;

constexpr std::array<std::pair<TargetKinds, std::string_view>, 12> kNames{{
    {kTargetEntry, "entry"},
    {kTargetBranch, "branch"},
    {kTargetForeign, "branch from elsewhere"},
    {kTargetTable, "jump table"},
    {kTargetLandingPad, "landing pad"},
    {kTargetSymbol, "symbol"},
    {kTargetFde, "FDE"},
    {kTargetRelocation, "relocation"},
    {kTargetWord | kTargetDistance, "word"},
    {kTargetLea, "lea"},
    {kTargetEndbr, "endbr"},
    {kTargetSite, "site"},
}};

// By address, each address once with all its kinds.
void merge(std::vector<CodeTarget>& targets) {
  std::ranges::sort(targets, {}, &CodeTarget::address);
  std::size_t kept = 0;
  for (const CodeTarget& target : targets) {
    if (kept != 0 && targets[kept - 1].address == target.address) {
      targets[kept - 1].kinds |= target.kinds;
    } else {
      targets[kept++] = target;
    }
  }
  targets.resize(kept);
}

}  // namespace

std::string target_names(TargetKinds kinds) {
  std::string text;
  for (const auto& [kind, name] : kNames) {
    if ((kinds & kind) == 0) continue;
    if (!text.empty()) text += ", ";
    text += name;
  }
  return text;
}

TargetKinds FunctionFlow::target(VirtAddr address) const {
  const auto at = std::ranges::lower_bound(targets, address, {}, &CodeTarget::address);
  return at != targets.end() && at->address == address ? at->kinds : 0;
}

bool FunctionFlow::target_between(VirtAddr after, VirtAddr before) const {
  const auto at = std::ranges::upper_bound(targets, after, {}, &CodeTarget::address);
  return at != targets.end() && at->address < before;
}

namespace {

bool is_filler(const CodeInstruction& code) {
  return code.kind == InstructionKind::nop ||
         (code.kind == InstructionKind::trap && code.size.value == 1);
}

}  // namespace

std::vector<bool> FunctionFlow::unreached_filler() const {
  std::vector<bool> unreached(code.size(), false);
  for (std::size_t i = 1; i < code.size(); ++i) {
    // A debugger, or a handler of SIGTRAP, goes on behind an int3 that somebody reached.
    const bool ends = code[i - 1].ends_block() && !is_filler(code[i - 1]);
    unreached[i] = (ends || unreached[i - 1]) && is_filler(code[i]) && target(code[i].address) == 0;
  }
  return unreached;
}

std::vector<bool> FunctionFlow::dead_filler() const {
  std::vector<bool> dead = unreached_filler();
  for (std::size_t i = 1; i < code.size(); ++i) {
    const bool after_dead = dead[i - 1] || !is_filler(code[i - 1]);
    dead[i] = dead[i] && complete && !holds_data && after_dead &&
              !target_between(code[i].address, code[i].end()) &&
              !kept.why_kept(code[i].address, code[i].end());
  }
  return dead;
}

const CodeInstruction* FunctionFlow::at(VirtAddr address) const {
  const auto found = std::ranges::lower_bound(code, address, {}, &CodeInstruction::address);
  return found != code.end() && found->address == address ? &*found : nullptr;
}

struct FlowReader::State {
  const ElfFile* file;
  CodeRanges ranges;
  std::vector<VirtAddr> sites;      // sorted
  std::vector<Function> functions;  // by start
  std::vector<std::size_t>
      holder;  // of each site, in `functions`; their number where there is none
  References references;
  CodeUses uses;
  std::uint64_t budget{};
  std::map<VirtAddr, bool> callees{};  // that return elsewhere

  [[nodiscard]] const Function* function_of(VirtAddr site) const;
  [[nodiscard]] bool entered_by_calls(const Function& function) const;
  void add_padding(FunctionFlow& flow) const;
  [[nodiscard]] bool may_be_used(const CodeUse& use) const;
  void add_own_targets(FunctionFlow& flow) const;
  void check_boundaries(FunctionFlow& flow) const;
};

namespace {

VirtAddr end_of(const Function& function) { return {function.start.value + function.size.value}; }

void incomplete(FunctionFlow& flow, std::string why) {
  if (flow.complete) flow.why_incomplete = std::move(why);
  flow.complete = false;
}

// Is `address` behind nothing but prefixes of the instruction? Code may jump over a lock prefix.
bool behind_prefixes(const CodeInstruction& code, VirtAddr address) {
  return address.value - code.address.value <= code.encoding.opcode_at && code.locked;
}

// The function of each site, and these functions by start. Where they overlap, as those of symbols
// without a size do, the lookup knows which one has the site.
struct FoundFunctions {
  std::vector<Function> functions;
  std::vector<std::size_t> holder;
};

FoundFunctions functions_of(const ElfFile& file, std::span<const VirtAddr> sites) {
  std::vector<CodeAddress> asked;
  for (const VirtAddr site : sites) asked.push_back({site, 0});
  const auto of_site = find_functions(file, asked).functions;
  FoundFunctions found;
  for (const auto& function : of_site)
    if (function) found.functions.push_back(*function);
  const auto key = [](const Function& f) { return std::pair(f.start, f.size); };
  std::ranges::sort(found.functions, {}, key);
  const auto same = [&](const Function& a, const Function& b) { return key(a) == key(b); };
  found.functions.erase(std::unique(found.functions.begin(), found.functions.end(), same),
                        found.functions.end());
  for (const auto& function : of_site) {
    const auto at = function ? std::ranges::lower_bound(found.functions, key(*function), {}, key)
                             : found.functions.end();
    found.holder.push_back(static_cast<std::size_t>(at - found.functions.begin()));
  }
  return found;
}

AddressRanges ranges_of(std::span<const Function> functions) {
  std::vector<AddressRanges::Range> ranges;
  for (const Function& function : functions) {
    const VirtAddr end = end_of(function);
    const std::uint64_t start = function.start.value;
    ranges.push_back({VirtAddr{start - std::min(start, kLongestPadding)},
                      VirtAddr{checked_add(end.value, kLongestPadding).value_or(end.value)}});
  }
  return AddressRanges(std::move(ranges));
}

}  // namespace

const Function* FlowReader::State::function_of(VirtAddr site) const {
  const auto at = std::ranges::lower_bound(sites, site);
  if (at == sites.end() || *at != site) return nullptr;
  const std::size_t index = holder[static_cast<std::size_t>(at - sites.begin())];
  return index == functions.size() ? nullptr : &functions[index];
}

// A symbol names it as a whole function, or something calls it or takes its address.
bool FlowReader::State::entered_by_calls(const Function& function) const {
  if (function.from_symbol) return !names_a_part(function.name);
  const auto start = references.into(function.start, VirtAddr{function.start.value + 1});
  return std::ranges::any_of(start,
                             [](const Reference& r) { return r.kind != ReferenceKind::branch; });
}

void FlowReader::State::add_padding(FunctionFlow& flow) const {
  const VirtAddr end = flow.end();
  const auto follows = ranges.find(end);
  if (follows && follows->start < end) return;  // the function is longer than its symbol says
  std::uint64_t last = end.value + kLongestPadding;
  if (const auto& unwind = ranges.unwind())
    for (const Fde& fde : unwind->starting_in(end, VirtAddr{last}))
      last = std::min(last, fde.start.value);
  for (const Reference& r : references.into(end, VirtAddr{last}))
    last = std::min(last, r.target.value);
  for (const CodeUse& use : uses.into(end, VirtAddr{last})) {
    if (may_be_used(use)) last = std::min(last, use.target.value);
  }
  // A note names it, rightly or not: it stays what it is.
  const auto site = std::ranges::lower_bound(sites, end);
  if (site != sites.end()) last = std::min(last, site->value);
  VirtAddr at = end;
  while (at.value < last) {
    const auto code = ranges.decode_at(at);
    const bool filler = code && (code->kind == InstructionKind::nop ||
                                 (code->kind == InstructionKind::trap && code->size.value == 1));
    if (!filler || code->end().value > last) break;
    at = code->end();
    flow.code.push_back(*code);
  }
  flow.padding = Size{at.value - end.value};
}

// An operand was found by its bytes: where the code around it is known, it has to be one.
bool FlowReader::State::may_be_used(const CodeUse& use) const {
  const auto range = use.kind == CodeUseKind::operand ? ranges.find(use.source) : std::nullopt;
  const auto code = range ? ranges.decode(*range) : std::nullopt;
  if (!code) return true;
  const auto after = std::ranges::upper_bound(*code, use.source, {}, &CodeInstruction::address);
  return after == code->begin() || is_operand(*std::prev(after), use);
}

void FlowReader::State::add_own_targets(FunctionFlow& flow) const {
  flow.targets.push_back({flow.function.start, kTargetEntry});
  const VirtAddr end = flow.end();
  for (const CodeInstruction& code : flow.code) {
    if (code.target && *code.target >= flow.function.start && *code.target < end)
      flow.targets.push_back({*code.target, kTargetBranch});
  }
  const auto first = std::ranges::lower_bound(sites, flow.function.start);
  for (auto site = first; site != sites.end() && *site < end; ++site)
    flow.targets.push_back({*site, kTargetSite});
}

// Linear and recursive decoding agree where every jump and landing pad leads to an instruction.
void FlowReader::State::check_boundaries(FunctionFlow& flow) const {
  for (const CodeTarget& target : flow.targets) {
    constexpr TargetKinds kCertain = kTargetBranch | kTargetLandingPad | kTargetSite |
                                     kTargetForeign | kTargetTable | kTargetLea | kTargetSymbol |
                                     kTargetRelocation;
    if ((target.kinds & kCertain) == 0) continue;
    const auto after =
        std::ranges::upper_bound(flow.code, target.address, {}, &CodeInstruction::address);
    if (after == flow.code.begin()) continue;
    const CodeInstruction& holder = *std::prev(after);
    if (holder.address == target.address || behind_prefixes(holder, target.address)) continue;
    incomplete(flow,
               fmt::format("{} {:#x} lies inside the instruction at {:#x}",
                           target_names(target.kinds), target.address.value, holder.address.value));
    return;
  }
}

Result<FlowReader> FlowReader::open(const ElfFile& file, std::span<const VirtAddr> sites) {
  const ElfHeader& header = file.header();
  if (header.type == ET_REL || header.type == ET_CORE)
    return fail(ErrorCode::refused, "e_type", "not a linked program or library");
  if (!header.is64) return fail(ErrorCode::refused, "e_machine", "only x86-64 is understood");
  if (file.sections().empty())
    return fail(ErrorCode::refused, "e_shoff",
                "without section headers, relocations and symbols are not known");
  auto ranges = CodeRanges::open(file);
  if (!ranges) return fail(ErrorCode::refused, "e_machine", "only x86-64 is understood");
  std::vector<VirtAddr> sorted(sites.begin(), sites.end());
  std::ranges::sort(sorted);
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  FoundFunctions found = functions_of(file, sorted);
  const AddressRanges asked = ranges_of(found.functions);
  References references = find_references(file, asked);
  CodeUses uses = find_code_uses(file, asked);
  return FlowReader(std::make_unique<State>(
      State{&file, std::move(*ranges), std::move(sorted), std::move(found.functions),
            std::move(found.holder), std::move(references), std::move(uses),
            checked_mul(file.source().size(), kBudget).value_or(~std::uint64_t{0})}));
}

Result<FunctionFlow> FlowReader::function_of(VirtAddr site) const {
  const Function* function = state_->function_of(site);
  if (function == nullptr)
    return fail(ErrorCode::refused, fmt::format("{:#x}", site.value),
                "the site lies in no known function");
  FunctionFlow flow;
  flow.function = *function;
  flow.complete = true;
  const CodeRange range{function->start, end_of(*function)};
  if (auto code = state_->ranges.decode(range)) flow.code = std::move(*code);
  if (flow.code.empty()) {
    incomplete(flow, "not all of its bytes are instructions, or it is longer than 1 MiB");
    return flow;
  }
  // What is patched may begin before the function (-fpatchable-function-entry=8,3).
  const std::uint64_t before = range.start.value - std::min(range.start.value, kLongestPadding);
  PartsQuestion question{range,
                         flow.code,
                         state_->references.into(range.start, VirtAddr{range.end.value + 1}),
                         state_->uses.into(VirtAddr{before}, range.end),
                         state_->entered_by_calls(*function),
                         &state_->budget,
                         &state_->callees};
  FunctionParts parts = find_parts(*state_->file, state_->ranges, question);
  flow.targets = std::move(parts.targets);
  flow.kept = KeptRanges(std::move(parts.kept));
  flow.holds_data = parts.holds_data;
  if (!parts.why_incomplete.empty()) incomplete(flow, std::move(parts.why_incomplete));
  if (!state_->references.unread.empty())
    incomplete(flow, state_->references.unread + " could not be read");
  if (!state_->uses.unread.empty()) incomplete(flow, state_->uses.unread + " could not be read");
  state_->add_own_targets(flow);
  merge(flow.targets);
  state_->check_boundaries(flow);
  state_->add_padding(flow);
  return flow;
}

std::span<const Function> FlowReader::functions() const { return state_->functions; }

FlowReader::FlowReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
FlowReader::FlowReader(FlowReader&&) noexcept = default;
FlowReader& FlowReader::operator=(FlowReader&&) noexcept = default;
FlowReader::~FlowReader() = default;

}  // namespace reprobe
