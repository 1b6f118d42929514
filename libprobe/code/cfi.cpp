#include "libprobe/code/cfi.hpp"

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace reprobe {
namespace {

auto not_read(VirtAddr address, std::string_view what) {
  return fail(ErrorCode::refused, ".eh_frame",
              fmt::format("the record at {:#x}: {}", address.value, what));
}

// What follows the length field, exactly as long as the record.
struct Record {
  VirtAddr next;
  unsigned pointer_width{};  // of the CIE pointer: 4, or 8 in the 64-bit format
  FrameCursor body;
};

std::optional<Record> read_record(const ElfFile& file, VirtAddr address) {
  const ElfHeader& header = file.header();
  constexpr std::uint64_t kHead = 12;
  FrameCursor head(file.bytes_at(address, Size{kHead}), address, header);
  auto length = head.fixed(4);
  const bool is64bit_format = length == 0xffffffff;
  if (is64bit_format) length = head.fixed(8);
  if (!length || *length == 0 || *length > kMaxCfiRecord) return std::nullopt;
  const auto next = checked_add(head.address().value, *length);
  if (!next) return std::nullopt;
  const ByteView body = file.bytes_at(head.address(), Size{*length});
  if (body.size() != *length) return std::nullopt;
  return Record{VirtAddr{*next}, is64bit_format ? 8U : 4U,
                FrameCursor(body, head.address(), header)};
}

}  // namespace

Result<CfiCie> read_cie(const ElfFile& file, VirtAddr address) {
  auto record = read_record(file, address);
  if (!record) return not_read(address, "no CIE is there");
  FrameCursor& cursor = record->body;
  auto fields = read_cie_fields(cursor, record->pointer_width, file.header());
  if (!fields) return not_read(address, fields.error());
  // 1 to 8 on all machines. The bound keeps products of it from wrapping.
  if (fields->code_alignment == 0 || fields->code_alignment > 0xff)
    return not_read(address, "its code alignment makes no sense");
  // What a copy is not made of: GCC 2's table, frames with memory tags.
  const std::string& augmentation = fields->augmentation;
  const bool copied =
      !augmentation.starts_with("eh") && augmentation.find('G') == std::string::npos;
  if (!copied || !cursor.skip(fields->augmentation_size))
    return not_read(address, fmt::format("unknown augmentation \"{}\"", augmentation));
  CfiCie cie{std::move(*fields), address, {}};
  cie.initial = {cursor.rest(), cursor.address()};
  return cie;
}

Result<CfiFde> read_fde(const ElfFile& file, VirtAddr address, std::optional<CfiCie>& cie) {
  auto record = read_record(file, address);
  if (!record) return not_read(address, "no FDE is there");
  FrameCursor& cursor = record->body;
  const VirtAddr id_field = cursor.address();
  const auto id = cursor.fixed(record->pointer_width);
  if (!id || *id == 0) return not_read(address, "no FDE is there");
  CfiFde fde;
  fde.address = address;
  fde.next = record->next;
  fde.cie = VirtAddr{id_field.value - *id};
  if (!cie || cie->address != fde.cie) {
    auto read = read_cie(file, fde.cie);
    if (!read) return tl::unexpected(read.error());
    cie = std::move(*read);
  }
  const auto start = cursor.pointer(cie->pointer_encoding);
  const auto size = start ? cursor.unrelated(cie->pointer_encoding & 0x0f) : std::nullopt;
  if (!size) return not_read(address, "its range is encoded in a way that is not read");
  fde.start = *start;
  fde.size = Size{wrap_address(*size, file.header()).value};
  if (!cie->augmentation.empty()) {
    const auto length = cursor.uleb128();
    if (!length) return not_read(address, "the FDE is cut off");
    if (cie->lsda_encoding != DW_EH_PE_omit) {
      FrameCursor data = cursor;
      const auto lsda = data.unrelated(cie->lsda_encoding);
      // What cannot be read may be there.
      fde.has_lsda = *length != 0 && (!lsda || *lsda != 0);
    }
    if (!cursor.skip(*length)) return not_read(address, "the FDE is cut off");
  }
  fde.program = {cursor.rest(), cursor.address()};
  return fde;
}

}  // namespace reprobe
