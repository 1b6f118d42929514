#include "libprobe/verify/filler.hpp"

#include "libprobe/code/nop.hpp"

namespace reprobe {
namespace {

// No linker aligns functions to more.
constexpr std::uint64_t kMostFiller = 256;

}  // namespace

bool is_filler(const ElfFile& file, VirtAddr begin, VirtAddr end) {
  if (end < begin || end.value - begin.value > kMostFiller) return false;
  const ByteView bytes = file.bytes_at(begin, Size{end.value - begin.value});
  if (bytes.size() != end.value - begin.value) return false;
  constexpr std::byte kTrap{0xcc}, kNop{0x90};
  const bool x86 = file.header().machine == EM_X86_64 || file.header().machine == EM_386;
  for (std::size_t i = 0; i < bytes.size();) {
    if (bytes[i] == std::byte{0} || (x86 && (bytes[i] == kTrap || bytes[i] == kNop))) {
      ++i;
      continue;
    }
    const Nop nop = nop_at(bytes.subspan(i), file.header(), false);
    if (nop.kind == NopKind::none || nop.size == 0) return false;
    i += nop.size;
  }
  return true;
}

}  // namespace reprobe
