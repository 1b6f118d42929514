// Bytes of a file behind one checked door: slice(). No other code turns an offset from the file
// into a pointer.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libprobe/elf/types.hpp"
#include "libprobe/error.hpp"

namespace reprobe {

using ByteView = std::span<const std::byte>;
using Bytes = std::vector<std::byte>;

// Where the bytes of a file come from: a mapping in production, memory in tests, fuzzing and
// archives, a counting source where a test asks how much was read. Views live as long as the
// source.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  [[nodiscard]] virtual std::uint64_t size() const = 0;
  // The bytes [offset, offset+size). Error `unreadable` where they are not all in the file;
  // `what` names the wanted thing for the message.
  [[nodiscard]] virtual Result<ByteView> slice(FileOffset offset, Size size,
                                               std::string_view what) const = 0;
};

// Takes the bytes over.
[[nodiscard]] std::shared_ptr<const ByteSource> memory_source(Bytes bytes);

// Borrows the bytes; the caller keeps them alive.
[[nodiscard]] std::shared_ptr<const ByteSource> borrowed_source(ByteView bytes);

// Maps the file read-only. Errors: unreadable (missing, no permission, a directory, not a regular
// file). A file that another process cuts short while it is mapped raises SIGBUS; the tool's
// handler ends it with exit 3.
[[nodiscard]] Result<std::shared_ptr<const ByteSource>> map_file(const std::filesystem::path& path);

// Reads an unsigned integer of 1, 2, 4 or 8 bytes in the given byte order. `bytes` must hold at
// least `width` bytes from `at`: callers check with slice() first; out of range gives 0 in no
// case, it is an assertion.
[[nodiscard]] std::uint64_t load_uint(ByteView bytes, std::size_t at, unsigned width,
                                      std::endian order);

// The reverse, for output. The value must fit the width (see narrow()).
void store_uint(std::span<std::byte> bytes, std::size_t at, unsigned width, std::endian order,
                std::uint64_t value);

// `text` as bytes and back; no terminator is added.
[[nodiscard]] ByteView as_bytes(std::string_view text);
[[nodiscard]] std::string_view as_text(ByteView bytes);

}  // namespace reprobe
