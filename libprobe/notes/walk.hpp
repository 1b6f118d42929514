// ELF notes as a chain of headers: where each one's parts lie, before anybody asks what it means.
// Format: System V ABI, "Note Section"; the padding is the one of libelf's gelf_getnote, which is
// 8 where the notes are laid out for 8 and 4 everywhere else.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>

#include "libprobe/elf/bytes.hpp"

namespace reprobe {

inline constexpr std::uint64_t kNoteHeader = 12;  // n_namesz, n_descsz, n_type: 4 bytes each

// Offsets in the section. name, desc and next never lie beyond its end.
struct RawNote {
  std::uint64_t at{};
  std::uint32_t namesz{};
  std::uint32_t descsz{};
  std::uint32_t type{};
  std::uint64_t name{};
  std::uint64_t desc{};
  std::uint64_t desc_end{};
  // Where the next note starts: behind the padding and behind a gap, or at the section's end.
  std::uint64_t next{};
  std::uint64_t missing_padding{};  // bytes of padding that the section's end cuts off
  std::uint64_t gap{};              // bytes behind the padding that belong to no note
};

struct NoteLayout {
  unsigned align{4};  // 4 or 8
  std::endian order{std::endian::little};
  // Step over up to 11 zero bytes where a stapsdt note or the section's end follows them: linkers
  // leave them between the note sections of two objects of which one asks for a larger alignment.
  bool gaps{};
};

// The note at `at`; nothing where it does not fit the section. `at` is a multiple of the layout's
// alignment and not beyond the end.
[[nodiscard]] std::optional<RawNote> read_note(ByteView section, std::uint64_t at,
                                               const NoteLayout& layout);

// Of the layouts 4, 8 and 4 with gaps the one that meets most stapsdt notes; of equals, one that
// reads the whole section, and then the first.
[[nodiscard]] NoteLayout find_layout(ByteView section, std::endian order);

// Does the note's name say "stapsdt", with or without NULs behind it?
[[nodiscard]] bool is_stapsdt(ByteView section, const RawNote& note);

}  // namespace reprobe
