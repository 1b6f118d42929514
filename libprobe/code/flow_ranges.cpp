#include "libprobe/code/flow_ranges.hpp"

#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>
#include <utility>

#include "libprobe/code/x86_length.hpp"

namespace reprobe {

bool names_a_part(std::string_view name) {
  // Clang's names may be longer than any that matters here.
  const std::string_view tail = name.size() > 4096 ? name.substr(name.size() - 4096) : name;
  return tail.ends_with(".cold") || tail.find(".cold.") != std::string_view::npos ||
         tail.find(".__part.") != std::string_view::npos;
}

namespace {

// GCC's and LLVM's names of retpolines.
bool is_thunk(std::string_view name) {
  return name.starts_with("__x86_indirect_thunk") || name.starts_with("__llvm_retpoline");
}

}  // namespace

std::optional<CodeRanges> CodeRanges::open(const ElfFile& file) {
  if (file.header().machine != EM_X86_64) return std::nullopt;
  auto decoder = Decoder::open(file.header(), false);
  if (!decoder) return std::nullopt;
  CodeRanges ranges(file, std::move(*decoder));
  ranges.unwind_ = UnwindTable::open(file);
  ranges.read_symbols();
  return ranges;
}

CodeRanges::CodeRanges(const ElfFile& file, Decoder decoder)
    : file_(&file), decoder_(std::move(decoder)) {}

void CodeRanges::read_symbols() {
  // Tables of a sane file do not overlap.
  std::uint64_t left = file_->source().size();
  for (const Section& section : file_->sections()) {
    if (!section.holds_symbols()) continue;
    const auto table = file_->symbol_table(section);
    if (!table || section.size.value > left) continue;
    left -= section.size.value;
    for (std::uint32_t i = 1; i < table->size(); ++i) {
      const Symbol symbol = table->at(i);
      const bool function = symbol.type == STT_FUNC || symbol.type == STT_GNU_IFUNC;
      if (!symbol.in_section() && symbol.shndx == SHN_UNDEF && is_thunk(table->name(symbol)))
        imports_thunks_ = true;
      if (!function || !symbol.in_section()) continue;
      const bool part = symbol.binding == STB_LOCAL && names_a_part(table->name(symbol));
      symbols_.push_back({symbol.value, symbol.size, part});
    }
  }
  std::ranges::sort(symbols_, {}, &SymbolRange::start);
}

std::optional<CodeRange> CodeRanges::find(VirtAddr address) const {
  const auto range = described(address);
  return range ? range : undescribed(address);
}

// The gap, where its instructions end with it: then they begin with it, too.
std::optional<CodeRange> CodeRanges::undescribed(VirtAddr address) const {
  if (!gaps_) gaps_ = find_gaps();
  const auto after =
      std::ranges::upper_bound(*gaps_, address, {}, [](const Gap& gap) { return gap.range.start; });
  if (after == gaps_->begin() || !std::prev(after)->range.contains(address)) return std::nullopt;
  Gap& gap = *std::prev(after);
  if (!gap.decodes) gap.decodes = decode(gap.range).has_value();
  return *gap.decodes ? std::optional(gap.range) : std::nullopt;
}

std::vector<CodeRanges::Gap> CodeRanges::find_gaps() const {
  std::vector<CodeRange> known;
  for (const SymbolRange& symbol : symbols_) {
    if (const auto end = checked_add(symbol.start.value, symbol.size.value))
      known.push_back({symbol.start, VirtAddr{*end}});
  }
  std::uint64_t left = file_->source().size();  // sections of a hostile file overlap
  std::vector<Gap> gaps;
  for (const Section& section : file_->sections()) {
    const auto end = checked_add(section.addr.value, section.size.value);
    if (!section.executable() || section.nobits() || !end || section.size.value > left) continue;
    left -= section.size.value;
    std::vector<CodeRange> here;
    if (unwind_) {
      for (const Fde& fde : unwind_->starting_in(section.addr, VirtAddr{*end})) {
        if (const auto last = checked_add(fde.start.value, fde.size.value))
          here.push_back({fde.start, VirtAddr{*last}});
      }
    }
    std::ranges::copy_if(known, std::back_inserter(here),
                         [&](const CodeRange& r) { return section.contains(r.start); });
    here.push_back({VirtAddr{*end}, VirtAddr{*end}});
    std::ranges::sort(here, {}, &CodeRange::start);
    VirtAddr at = section.addr;
    for (const CodeRange& range : here) {
      if (range.start > at) gaps.push_back({{at, range.start}, {}});
      at = std::max(at, range.end);
    }
  }
  std::ranges::sort(gaps, {}, [](const Gap& gap) { return gap.range.start; });
  return gaps;
}

std::optional<CodeRange> CodeRanges::described(VirtAddr address) const {
  std::optional<Fde> fde;
  if (unwind_) fde = unwind_->find(address);
  if (fde) {
    const auto end = checked_add(fde->start.value, fde->size.value);
    if (!end) return std::nullopt;
    return CodeRange{fde->start, VirtAddr{*end}};
  }
  auto after = std::ranges::upper_bound(symbols_, address, {}, &SymbolRange::start);
  if (after == symbols_.begin()) return std::nullopt;
  // Of aliases, one that covers the address.
  const VirtAddr start = std::prev(after)->start;
  for (; after != symbols_.begin() && std::prev(after)->start == start; --after) {
    const SymbolRange& symbol = *std::prev(after);
    const auto end = checked_add(start.value, symbol.size.value);
    if (end && in_range(address.value, start.value, symbol.size.value))
      return CodeRange{start, VirtAddr{*end}};
  }
  return std::nullopt;
}

bool CodeRanges::is_function(VirtAddr address) const {
  const std::span here(std::ranges::lower_bound(symbols_, address, {}, &SymbolRange::start),
                       std::ranges::upper_bound(symbols_, address, {}, &SymbolRange::start));
  return std::any_of(here.begin(), here.end(), [](const SymbolRange& s) { return !s.part; });
}

bool CodeRanges::is_linkage(VirtAddr address) const {
  for (unsigned i = 0; i < 2; ++i) {
    const auto code = decode_at(address);
    if (!code) return false;
    if (code->kind == InstructionKind::indirect_jump) return code->rip_target.has_value();
    if (code->kind != InstructionKind::endbr) return false;
    address = code->end();
  }
  return false;
}

std::optional<CodeInstruction> CodeRanges::decode_at(VirtAddr address) const {
  return decoder_.decode_operands(file_->bytes_at(address, Size{kLongestX86}), address);
}

std::optional<std::vector<CodeInstruction>> CodeRanges::decode(const CodeRange& range) const {
  const std::uint64_t size = range.end.value - range.start.value;
  if (range.end <= range.start || size > kLongest) return std::nullopt;
  ByteView bytes = file_->bytes_at(range.start, Size{size});
  if (bytes.size() != size) return std::nullopt;
  std::vector<CodeInstruction> code;
  VirtAddr at = range.start;
  while (!bytes.empty()) {
    auto instruction = decoder_.decode_operands(bytes, at);
    if (!instruction) return std::nullopt;
    at = instruction->end();
    bytes = bytes.subspan(static_cast<std::size_t>(instruction->size.value));
    code.push_back(*instruction);
  }
  return code;
}

}  // namespace reprobe
