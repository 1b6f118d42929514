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
      if (!function || !symbol.in_section()) continue;
      const bool part = symbol.binding == STB_LOCAL && names_a_part(table->name(symbol));
      symbols_.push_back({symbol.value, symbol.size, part});
    }
  }
  std::ranges::sort(symbols_, {}, &SymbolRange::start);
}

std::optional<CodeRange> CodeRanges::find(VirtAddr address) const {
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
