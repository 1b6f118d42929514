#include "libprobe/code/unwind_merge.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace reprobe {
namespace {

// In C++ most functions have an LSDA.
constexpr std::size_t kLookedAtForOne = 64;
constexpr std::size_t kLookedAtAnyway = 1024;
// Every unwinding through the pair runs both programs: 256 bytes take about a microsecond.
constexpr std::size_t kLongestProgram = 256;

std::optional<FrameRows> read_function(const ElfFile& file, const UnwindEntry& entry,
                                       const FrameKind& kind) {
  std::optional<CfiCie> cie;
  const auto fde = read_fde(file, entry.fde, cie);
  // The table's start is what libgcc goes by.
  if (!fde || fde->start != entry.start || fde->size.value == 0) return std::nullopt;
  if (fde->has_lsda || cie->augmentation.find('P') != std::string::npos) return std::nullopt;
  if (fde->program.bytes.size() > kLongestProgram) return std::nullopt;
  auto rows = read_rows(file, *cie, *fde);
  if (!rows || !same_kind({*cie, rows->initial}, kind)) return std::nullopt;
  return FrameRows{fde->start, fde->size, std::move(rows->rows)};
}

}  // namespace

std::vector<MergedPair> find_merged_pairs(const ElfFile& file, const UnwindIndex& index,
                                          std::size_t end, const FrameKind& kind,
                                          std::size_t wanted) {
  std::vector<MergedPair> pairs;
  std::optional<FrameRows> above;
  const std::size_t looked_at = std::min(end, kLookedAtAnyway + wanted * kLookedAtForOne);
  for (std::size_t i = end; i > end - looked_at && pairs.size() < wanted; --i) {
    auto below = read_function(file, index.entries[i - 1], kind);
    if (below && above && below->start < below->end() && below->end() <= above->start) {
      pairs.push_back({i - 1, {std::move(*below), std::move(*above)}});
      below.reset();
    }
    above = std::move(below);
  }
  std::ranges::reverse(pairs);
  return pairs;
}

}  // namespace reprobe
