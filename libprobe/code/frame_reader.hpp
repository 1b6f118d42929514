// Decodes the records of .eh_frame one at a time, at addresses that the caller found.
// Format: LSB Core 5.0, 10.6.1; DWARF 4, 6.4.1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "libprobe/code/eh_frame.hpp"
#include "libprobe/elf/bytes.hpp"
#include "libprobe/elf/file.hpp"

namespace reprobe {

// Pointer encodings (LSB Core 5.0, 10.5.1): a format in the low four bits, what it is relative to
// in the next three.
inline constexpr unsigned DW_EH_PE_absptr = 0x00, DW_EH_PE_udata2 = 0x02, DW_EH_PE_udata4 = 0x03,
                          DW_EH_PE_udata8 = 0x04, DW_EH_PE_sdata2 = 0x0a, DW_EH_PE_sdata4 = 0x0b,
                          DW_EH_PE_sdata8 = 0x0c, DW_EH_PE_pcrel = 0x10, DW_EH_PE_datarel = 0x30,
                          DW_EH_PE_omit = 0xff;

// Takes fields from the front of bytes whose address is known. A field that is cut off or encoded
// in a way we do not read gives nothing.
class FrameCursor {
 public:
  FrameCursor(ByteView bytes, VirtAddr address, const ElfHeader& header)
      : bytes_(bytes), address_(address), header_(&header) {}

  [[nodiscard]] std::optional<std::uint64_t> fixed(unsigned width);
  [[nodiscard]] std::optional<std::uint64_t> uleb128();
  [[nodiscard]] std::optional<std::int64_t> sleb128();
  // A CIE's augmentation string, without its NUL.
  [[nodiscard]] std::optional<std::string> augmentation();
  [[nodiscard]] bool skip(std::uint64_t count);
  // A pointer; `data_base` is what datarel counts from (.eh_frame_hdr's own address there).
  [[nodiscard]] std::optional<VirtAddr> pointer(unsigned encoding,
                                                std::optional<VirtAddr> data_base = {});
  // The same format without the base: a length.
  [[nodiscard]] std::optional<std::uint64_t> unrelated(unsigned encoding);

  [[nodiscard]] VirtAddr address() const { return address_; }
  [[nodiscard]] ByteView rest() const { return bytes_; }

 private:
  ByteView bytes_;
  VirtAddr address_;
  const ElfHeader* header_;
};

// A CIE up to its augmentation data.
struct CieFields {
  std::uint8_t version{};  // 1 or 3
  std::string augmentation;
  std::uint64_t code_alignment{};
  std::int64_t data_alignment{};
  std::uint64_t return_register{};
  std::uint64_t augmentation_size{};  // of the data of 'z'
  unsigned pointer_encoding{DW_EH_PE_absptr};
  unsigned lsda_encoding{DW_EH_PE_omit};
  bool signal_frame{};  // 'S': the frame of a handler, or of code it interrupted
  bool b_key{};         // 'B': AArch64 signs return addresses with key B

  // 'z': FDEs say how long their augmentation data is.
  [[nodiscard]] bool sized() const { return augmentation.starts_with('z'); }
};

// Reads from a cursor behind the length field and leaves it in front of the augmentation data. The
// augmentations are those of GCC and LLVM, with GCC 2's "eh". Error: what was not understood.
[[nodiscard]] tl::expected<CieFields, std::string> read_cie_fields(FrameCursor& cursor,
                                                                   unsigned pointer_width,
                                                                   const ElfHeader& header);

// .eh_frame_hdr (LSB Core 5.0, 10.6.2).
struct FrameHeader {
  std::optional<VirtAddr> eh_frame;  // nothing: the head cannot be read
  // Of the search table, where it has the form that every linker writes: glibc's and libgcc's
  // search accept no other.
  std::optional<std::uint64_t> count;  // as stated; the entries may be fewer
  ByteView entries;                    // to the end of `bytes`
  VirtAddr entries_address;
};
[[nodiscard]] FrameHeader read_frame_header(ByteView bytes, VirtAddr address,
                                            const ElfHeader& header);

// Wraps at the file's word size.
[[nodiscard]] VirtAddr wrap_address(std::uint64_t value, const ElfHeader& header);

// One record of .eh_frame.
struct FrameRecord {
  VirtAddr next;      // where the next record starts
  bool terminator{};  // length 0
  bool cie{};
  std::optional<Fde> fde;  // nothing for a CIE, and for an FDE that cannot be decoded
};

class FrameReader {
 public:
  explicit FrameReader(const ElfFile& file) : file_(&file) {}

  // The record at the address; nothing where its head lies outside the file's bytes.
  [[nodiscard]] std::optional<FrameRecord> read(VirtAddr address);

 private:
  [[nodiscard]] std::optional<CieFields> parse_cie(VirtAddr address) const;
  [[nodiscard]] std::optional<Fde> parse_fde(FrameCursor cursor, const CieFields& cie) const;

  const ElfFile* file_;
  // The last CIE: neighbours share it.
  std::optional<VirtAddr> cie_address_;
  std::optional<CieFields> cie_;
};

}  // namespace reprobe
