#include "libprobe/rewrite/guards/start_code.hpp"

#include <array>
#include <optional>
#include <span>

namespace reprobe {
namespace {

// Bytes of code; a negative number stands for a byte that is not looked at, except:
constexpr int kAny = -1;       // the distance of a short jump
constexpr int kRelative = -2;  // begins a field of 4 bytes that counts from its end
constexpr int kAbsolute = -3;  // begins a field of 4 bytes that holds the address
constexpr int kMore = -4;      // of such a field

// lea T(%rip),%rdi; lea T(%rip),%rax; cmp %rdi,%rax; je
constexpr std::array kDeregister{0x48,  0x8d,  0x3d, kRelative, kMore,     kMore,
                                 kMore, 0x48,  0x8d, 0x05,      kRelative, kMore,
                                 kMore, kMore, 0x48, 0x39,      0xf8,      0x74};
// lea T(%rip),%rdi; lea T(%rip),%rsi; sub %rdi,%rsi; mov %rsi,%rax; shr $63,%rsi; sar $3,%rax;
// add %rax,%rsi; sar %rsi; je
constexpr std::array kRegister{0x48, 0x8d,      0x3d,  kRelative, kMore, kMore, kMore, 0x48, 0x8d,
                               0x35, kRelative, kMore, kMore,     kMore, 0x48,  0x29,  0xfe, 0x48,
                               0x89, 0xf0,      0x48,  0xc1,      0xee,  0x3f,  0x48,  0xc1, 0xf8,
                               0x03, 0x48,      0x01,  0xc6,      0x48,  0xd1,  0xfe,  0x74};
// mov $T,%eax; cmp $T,%rax; je; mov $0,%eax; test %rax,%rax; je; mov $T,%edi; jmp *%rax
constexpr std::array kDeregisterAbsolute{
    0xb8,  kAbsolute, kMore, kMore, kMore,     0x48,  0x3d,  kAbsolute, kMore, kMore,
    kMore, 0x74,      kAny,  0xb8,  0x00,      0x00,  0x00,  0x00,      0x48,  0x85,
    0xc0,  0x74,      kAny,  0xbf,  kAbsolute, kMore, kMore, kMore,     0xff,  0xe0};
// mov $T,%esi; sub $T,%rsi; ...; mov $T,%edi; jmp *%rax
constexpr std::array kRegisterAbsolute{
    0xbe, kAbsolute, kMore, kMore, kMore, 0x48, 0x81,      0xee,  kAbsolute, kMore, kMore, kMore,
    0x48, 0x89,      0xf0,  0x48,  0xc1,  0xee, 0x3f,      0x48,  0xc1,      0xf8,  0x03,  0x48,
    0x01, 0xc6,      0x48,  0xd1,  0xfe,  0x74, kAny,      0xb8,  0x00,      0x00,  0x00,  0x00,
    0x48, 0x85,      0xc0,  0x74,  kAny,  0xbf, kAbsolute, kMore, kMore,     kMore, 0xff,  0xe0};

using Pattern = std::span<const int>;

std::uint64_t field_value(ByteView bytes, std::size_t at, VirtAddr start, bool relative) {
  const std::uint64_t raw = load_uint(bytes, at, 4, std::endian::little);
  if (!relative) return raw;
  return start.value + at + 4 + ((raw ^ 0x80000000U) - 0x80000000U);
}

// Does the code at `start` fit, with one address in all fields?
bool fits(const ElfFile& file, VirtAddr start, Pattern pattern) {
  const ByteView bytes = file.bytes_at(start, Size{pattern.size()});
  if (bytes.size() < pattern.size()) return false;
  std::optional<std::uint64_t> address;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] >= 0 && std::to_integer<int>(bytes[i]) != pattern[i]) return false;
    if (pattern[i] != kRelative && pattern[i] != kAbsolute) continue;
    const std::uint64_t value = field_value(bytes, i, start, pattern[i] == kRelative);
    if (address.value_or(value) != value) return false;
    address = value;
  }
  return true;
}

bool holds(const ElfFile& file, VirtAddr field, Pattern pattern) {
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != kRelative && pattern[i] != kAbsolute) continue;
    if (field.value >= i && fits(file, VirtAddr{field.value - i}, pattern)) return true;
  }
  return false;
}

}  // namespace

bool is_start_code_operand(const ElfFile& file, VirtAddr field) {
  return holds(file, field, kDeregister) || holds(file, field, kRegister) ||
         (file.header().type == ET_EXEC &&
          (holds(file, field, kDeregisterAbsolute) || holds(file, field, kRegisterAbsolute)));
}

}  // namespace reprobe
