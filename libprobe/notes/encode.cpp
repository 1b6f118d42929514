// The other half of the stapsdt codec: canonical bytes from fields.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "libprobe/notes/stapsdt.hpp"
#include "libprobe/notes/walk.hpp"

namespace reprobe {
namespace {

Error unfit(std::string message) {
  return Error{ErrorCode::refused, std::string(kStapsdtSection), std::move(message), {}};
}

Result<void> check(const NoteFields& fields, bool is64) {
  if (!is64) {
    const std::array<std::pair<const char*, VirtAddr>, 3> addresses{
        {{"location", fields.location}, {"base", fields.base}, {"semaphore", fields.semaphore}}};
    for (const auto& [what, address] : addresses) {
      if (!narrow<std::uint32_t>(address.value)) {
        return tl::unexpected(
            unfit(fmt::format("{} of a note; expected 32 bits, found {:#x}", what, address.value)));
      }
    }
  }
  for (const std::string* text : {&fields.provider, &fields.name, &fields.arguments}) {
    if (text->find('\0') != std::string::npos) {
      return tl::unexpected(unfit("string of a note; expected no NUL inside, found one"));
    }
  }
  return {};
}

void put_text(Bytes& out, std::size_t at, std::string_view text) {
  std::ranges::copy(as_bytes(text), out.begin() + static_cast<std::ptrdiff_t>(at));
}

}  // namespace

Result<Bytes> encode_note(const NoteFields& fields, bool is64, std::endian order) {
  if (const auto fits = check(fields, is64); !fits) return tl::unexpected(fits.error());
  const std::size_t word = is64 ? 8 : 4;
  constexpr std::size_t kNamesz = kStapsdtOwner.size() + 1;
  constexpr std::size_t kDescriptor = kNoteHeader + kNamesz;
  const std::size_t descsz =
      3 * word + fields.provider.size() + fields.name.size() + fields.arguments.size() + 3;
  // Well below 2^32, so that the padded note's size fits too.
  if (descsz > std::numeric_limits<std::uint32_t>::max() - 64) {
    return tl::unexpected(unfit(fmt::format("descsz; expected 32 bits, found {:#x}", descsz)));
  }
  Bytes out((kDescriptor + descsz + 3) / 4 * 4);  // zeros: the NULs and the padding
  store_uint(out, 0, 4, order, kNamesz);
  store_uint(out, 4, 4, order, descsz);
  store_uint(out, 8, 4, order, NT_STAPSDT);
  put_text(out, kNoteHeader, kStapsdtOwner);
  const auto width = static_cast<unsigned>(word);
  store_uint(out, kDescriptor, width, order, fields.location.value);
  store_uint(out, kDescriptor + word, width, order, fields.base.value);
  store_uint(out, kDescriptor + 2 * word, width, order, fields.semaphore.value);
  std::size_t at = kDescriptor + 3 * word;
  for (const std::string* text : {&fields.provider, &fields.name, &fields.arguments}) {
    put_text(out, at, *text);
    at += text->size() + 1;
  }
  return out;
}

}  // namespace reprobe
