// Where an address may be kept, and the moves between such places.
#pragma once

#include <compare>
#include <optional>

#include "libprobe/code/x86_operands.hpp"
#include "libprobe/rewrite/guards/frame_words.hpp"

namespace reprobe {

// A register, or a word of the frame.
struct AddressPlace {
  bool in_frame{};
  unsigned reg{};
  FrameWord word;
  auto operator<=>(const AddressPlace&) const = default;
};

inline constexpr std::int64_t kAddressSize = 8;

// mov or push of the whole register: to another one, or to a word of the frame; pop likewise.
struct AddressMove {
  AddressPlace from, to;
};
[[nodiscard]] std::optional<AddressMove> address_move(const CodeInstruction& code,
                                                      const FrameWords& frame);

// Does it read or write bytes of the word, other than as address_move() says?
[[nodiscard]] bool touches_word(const CodeInstruction& code, const FrameWords& frame,
                                const FrameWord& word);

}  // namespace reprobe
