// The codec of .note.reprobe, the loaded index of the probes. Format: docs/format.md, version 1;
// offsets and names are its own.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libprobe/elf/file.hpp"

namespace reprobe {

inline constexpr std::string_view kIndexSection = ".note.reprobe";
inline constexpr std::string_view kIndexOwner = "reprobe";
inline constexpr std::uint32_t kIndexType = 1;  // n_type
// Bytes of an index note before its descriptor: the note's header and its name.
inline constexpr std::uint64_t kIndexDescriptor = 20;

// `kind` of an entry.
enum class SiteKind : std::uint16_t {
  other = 0,
  nop = 1,
  nop5 = 2,
  nop10 = 3,
  sled_nop5 = 4,
  sled_nop10 = 5,
  sled_call = 6,
  sled_slot = 7,
};

struct IndexEntry {
  VirtAddr site;
  VirtAddr semaphore;  // 0: none, and so are the next two
  VirtAddr slot;
  VirtAddr resume;
  SiteKind kind{SiteKind::other};  // other where a newer writer's kind is not known
  std::uint16_t size{};            // bytes of the nop
  std::string provider;
  std::string name;
  std::string arguments;
  bool operator==(const IndexEntry&) const = default;
};

struct ProbeIndex {
  bool partial{};  // made of some of the probes
  VirtAddr base;   // of the notes; 0: none
  std::vector<IndexEntry> entries;
  bool operator==(const ProbeIndex&) const = default;
};

// Bytes of the whole note for an index, which are the same at every address.
[[nodiscard]] std::uint64_t index_size(const ProbeIndex& index);

// The note for an address: `size` bytes, a multiple of 4 from index_size() on; what is more is
// zeros. Errors: refused (something lies further than 2 GiB from its word, a string with a NUL, an
// index that does not fit 32-bit sizes).
[[nodiscard]] Result<Bytes> encode_index(const ProbeIndex& index, VirtAddr address, Size size,
                                         const ElfHeader& header);

// `descriptor`: what stands at `address`. Errors: malformed (contradicts itself), refused (another
// version).
[[nodiscard]] Result<ProbeIndex> decode_index(ByteView descriptor, VirtAddr address,
                                              const ElfHeader& header);

// Where an index stands in a file.
struct IndexPlace {
  std::uint32_t segment{};  // its PT_NOTE, by index
  FileOffset offset;        // of the note
  VirtAddr address;
  Size size;  // of the note, padding included
};

// The index note of a file: the first in its PT_NOTEs, where a PT_LOAD maps that at the address
// that it says. Nothing where there is none. Reads at most the file's size.
[[nodiscard]] std::optional<IndexPlace> find_index(const ElfFile& file);

// Errors: those of decode_index().
[[nodiscard]] Result<ProbeIndex> read_index(const ElfFile& file, const IndexPlace& place);

}  // namespace reprobe
