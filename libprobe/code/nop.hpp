// Which nop stands at a site. A probe site is one nop of its architecture, emitted by the probe
// macro; two longer forms are used on x86-64 (libbpf/usdt 2026).
#pragma once

#include <bit>
#include <cstdint>

#include "libprobe/elf/bytes.hpp"
#include "libprobe/elf/file.hpp"

namespace reprobe {

enum class NopKind {
  none,   // no nop
  nop,    // the architecture's own nop (x86: 90)
  nop5,   // x86-64: 0f 1f 44 00 00, or 90 0f 1f 44 00 00 with the site on the 90
  nop10,  // x86-64: 90 66 2e 0f 1f 84 00 00 00 00 00, the site on the 90
  other,  // any other nop: of a header that was given one (USDT_NOP of libbpf/usdt), or padding
};

struct Nop {
  NopKind kind{NopKind::none};
  std::uint64_t size{};  // bytes of the site's instruction(s), 0 for none
};

// `bytes` starts at the site; fewer than the longest nop are enough at the end of a section.
// `thumb`: the site is Thumb code (EM_ARM only).
[[nodiscard]] Nop nop_at(ByteView bytes, const ElfHeader& header, bool thumb);

// Is the machine's nop known? Where not, nop_at() gives `none` for every site, which proves
// nothing.
[[nodiscard]] bool knows_nops(std::uint16_t machine);

// The longest form in bytes: what to ask of ElfFile::bytes_at.
inline constexpr Size kLongestNop{15};

}  // namespace reprobe
