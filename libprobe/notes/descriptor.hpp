// The descriptor of a stapsdt note: three addresses, three strings.
// Format: SystemTap sys/sdt.h 4.8, _SDT_ASM_BODY.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>

#include "libprobe/elf/bytes.hpp"
#include "libprobe/notes/stapsdt.hpp"

namespace reprobe {

struct Descriptor {
  NoteFields fields;
  std::uint64_t used{};         // bytes up to and with the arguments' NUL, or all of them
  bool arguments_terminated{};  // the arguments' NUL is there
};

// Bytes of the smallest descriptor: three addresses of `word` bytes and three NULs.
[[nodiscard]] constexpr std::uint64_t smallest_descriptor(unsigned word) { return 3 * word + 3; }

// Nothing where the descriptor is shorter than that or the NUL of the provider or of the name is
// missing. `word` is 4 or 8.
[[nodiscard]] std::optional<Descriptor> decode_descriptor(ByteView bytes, unsigned word,
                                                          std::endian order);

// Do the bytes read as a faultless descriptor (non-empty provider and name, nothing behind the
// arguments)? Tells which word size a descriptor was written with.
[[nodiscard]] bool faultless_descriptor(ByteView bytes, unsigned word, std::endian order);

}  // namespace reprobe
