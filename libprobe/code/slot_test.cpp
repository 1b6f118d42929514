#include "libprobe/code/slot_test.hpp"

#include <algorithm>
#include <array>
#include <span>

#include "libprobe/notes/stapsdt.hpp"

namespace reprobe {
namespace {

// cmpl $0,slot(%rip): the operand counts from behind the immediate.
constexpr std::array<std::uint8_t, 2> kCompare{0x83, 0x3d};
// lea -128(%rsp),%rsp; push %rcx; mov slot(%rip),%ecx
constexpr std::array<std::uint8_t, 8> kLoad{0x48, 0x8d, 0x64, 0x24, 0x80, 0x51, 0x8b, 0x0d};
constexpr std::uint64_t kField = 4, kImmediate = 1;

std::optional<VirtAddr> operand(const ElfFile& file, VirtAddr at,
                                std::span<const std::uint8_t> codes, std::uint64_t behind) {
  const std::uint64_t size = codes.size() + kField + behind;
  const ByteView bytes = file.bytes_at(at, Size{size});
  const auto same = [](std::byte byte, std::uint8_t code) { return byte == std::byte{code}; };
  if (bytes.size() != size || !std::ranges::equal(bytes.first(codes.size()), codes, same))
    return std::nullopt;
  const std::uint64_t distance =
      load_uint(bytes, codes.size(), static_cast<unsigned>(kField), file.header().order);
  return VirtAddr{at.value + size + ((distance ^ 0x80000000U) - 0x80000000U)};
}

}  // namespace

std::optional<VirtAddr> slot_tested_at(const ElfFile& file, VirtAddr at) {
  const Section* slots = file.section(kSlotSection);
  if (slots == nullptr) return std::nullopt;
  auto slot = operand(file, at, kCompare, kImmediate);
  if (!slot) slot = operand(file, at, kLoad, 0);
  if (!slot || !in_range(slot->value, slots->addr.value, slots->size.value)) return std::nullopt;
  return slot;
}

}  // namespace reprobe
