#include "libprobe/rewrite/sled/sled_bytes.hpp"

#include <algorithm>
#include <array>
#include <span>

namespace reprobe {
namespace {

using Codes = std::span<const std::uint8_t>;

// nop; nopw %cs:0x0(%rax,%rax,1): libbpf's usdt.h emits the same.
constexpr std::array<std::uint8_t, 11> kNop10{0x90, 0x66, 0x2e, 0x0f, 0x1f, 0x84,
                                              0x00, 0x00, 0x00, 0x00, 0x00};
// nopl 0x0(%rax,%rax,1)
constexpr std::array<std::uint8_t, 5> kNop5{0x0f, 0x1f, 0x44, 0x00, 0x00};
// lea -128(%rsp),%rsp and lea 128(%rsp),%rsp: they leave the flags alone.
constexpr std::array<std::uint8_t, 5> kLower{0x48, 0x8d, 0x64, 0x24, 0x80};
constexpr std::array<std::uint8_t, 8> kRaise{0x48, 0x8d, 0xa4, 0x24, 0x80, 0x00, 0x00, 0x00};

constexpr std::uint64_t kPage = 4096;

void append(Bytes& out, Codes codes) {
  std::ranges::transform(codes, std::back_inserter(out),
                         [](std::uint8_t code) { return std::byte{code}; });
}

Codes codes_of(SledKind kind) { return kind == SledKind::nop5 ? Codes(kNop5) : Codes(kNop10); }

}  // namespace

SledBytes sled_bytes(SledKind kind, bool guarded) {
  SledBytes sled;
  if (guarded) append(sled.bytes, kLower);
  sled.note = sled.bytes.size();
  append(sled.bytes, codes_of(kind));
  if (guarded) append(sled.bytes, kRaise);
  return sled;
}

Size sled_size(SledKind kind) { return Size{codes_of(kind).size()}; }

bool sled_fits_page(SledKind kind, VirtAddr at) {
  // Of nop10 the byte that the note names is not part of the multi-byte nop.
  const std::uint64_t nop = kind == SledKind::nop5 ? at.value : at.value + 1;
  const std::uint64_t size = kind == SledKind::nop5 ? kNop5.size() : kNop10.size() - 1;
  return nop % kPage + size <= kPage;
}

Bytes filler_nops(std::uint64_t size) {
  // Intel SDM volume 2, NOP: the recommended forms of 1 to 9 bytes.
  constexpr std::array<std::array<std::uint8_t, 9>, 9> kForms{{
      {0x90},
      {0x66, 0x90},
      {0x0f, 0x1f, 0x00},
      {0x0f, 0x1f, 0x40, 0x00},
      {0x0f, 0x1f, 0x44, 0x00, 0x00},
      {0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00},
      {0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00},
      {0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00},
      {0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00},
  }};
  Bytes out;
  while (size != 0) {
    const auto take = static_cast<std::size_t>(std::min<std::uint64_t>(size, kForms.size()));
    append(out, Codes(kForms[take - 1]).first(take));
    size -= take;
  }
  return out;
}

}  // namespace reprobe
