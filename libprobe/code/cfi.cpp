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

// The data of 'z', of which `cursor` is a copy; the caller skips it by its stated length.
bool read_augmentation_data(FrameCursor cursor, CfiCie& cie) {
  for (const char c : cie.augmentation.substr(1)) {
    if (c == 'S') cie.signal_frame = true;
    if (c == 'B') cie.b_key = true;
    if (c == 'S' || c == 'B') continue;
    const auto encoding = cursor.fixed(1);
    if (!encoding) return false;
    const auto value = static_cast<unsigned>(*encoding);
    if (c == 'R') {
      cie.pointer_encoding = value;
    } else if (c == 'L') {
      cie.lsda_encoding = value;
    } else if (c != 'P' || (value != DW_EH_PE_omit && !cursor.unrelated(value))) {
      return false;
    }
  }
  return true;
}

}  // namespace

Result<CfiCie> read_cie(const ElfFile& file, VirtAddr address) {
  auto record = read_record(file, address);
  if (!record) return not_read(address, "no CIE is there");
  FrameCursor& cursor = record->body;
  CfiCie cie;
  cie.address = address;
  const auto id = cursor.fixed(record->pointer_width);
  const auto version = cursor.fixed(1);
  if (id != 0 || (version != 1 && version != 3)) return not_read(address, "no CIE is there");
  cie.version = static_cast<std::uint8_t>(*version);
  auto augmentation = cursor.augmentation();
  const auto code_alignment = augmentation ? cursor.uleb128() : std::nullopt;
  const auto data_alignment = code_alignment ? cursor.sleb128() : std::nullopt;
  const auto return_register = !data_alignment ? std::nullopt
                               : *version == 1 ? cursor.fixed(1)
                                               : cursor.uleb128();
  if (!return_register) return not_read(address, "the CIE is cut off");
  // 1 to 8 on all machines. The bound keeps products of it from wrapping.
  if (*code_alignment == 0 || *code_alignment > 0xff)
    return not_read(address, "its code alignment makes no sense");
  cie.augmentation = std::move(*augmentation);
  cie.code_alignment = *code_alignment;
  cie.data_alignment = *data_alignment;
  cie.return_register = *return_register;
  if (!cie.augmentation.empty()) {
    const auto size = cie.augmentation.front() == 'z' ? cursor.uleb128() : std::nullopt;
    if (!size || !read_augmentation_data(cursor, cie) || !cursor.skip(*size))
      return not_read(address, fmt::format("unknown augmentation \"{}\"", cie.augmentation));
  }
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
