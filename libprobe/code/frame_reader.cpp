#include "libprobe/code/frame_reader.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

namespace reprobe {
namespace {

// Of a record, only its first fields are looked at: the CIE's up to the augmentation data, the
// FDE's up to the LSDA pointer. Longer augmentation strings are not in use.
constexpr std::uint64_t kLongestHead = 96;
constexpr std::size_t kLongestAugmentation = 16;

constexpr unsigned kFormatBits = 0x0f;
constexpr unsigned kRelationBits = 0x70;
constexpr unsigned kIndirect = 0x80;

// The length field and what follows it, up to the end of the record or of what is looked at.
struct Head {
  VirtAddr next;
  std::uint64_t length{};
  bool is64bit_format{};
  FrameCursor body;
};

std::optional<Head> read_head(const ElfFile& file, VirtAddr address) {
  const ElfHeader& header = file.header();
  FrameCursor cursor(file.bytes_at(address, Size{kLongestHead}), address, header);
  auto length = cursor.fixed(4);
  if (!length) return std::nullopt;
  const bool is64bit_format = *length == 0xffffffff;
  if (is64bit_format) length = cursor.fixed(8);
  if (!length) return std::nullopt;
  const auto next = checked_add(cursor.address().value, *length);
  if (!next) return std::nullopt;
  const ByteView rest = cursor.rest();
  const ByteView body =
      rest.first(static_cast<std::size_t>(std::min<std::uint64_t>(rest.size(), *length)));
  return Head{VirtAddr{*next}, *length, is64bit_format,
              FrameCursor(body, cursor.address(), header)};
}

}  // namespace

VirtAddr wrap_address(std::uint64_t value, const ElfHeader& header) {
  return {header.is64 ? value : value & 0xffffffffU};
}

std::optional<std::uint64_t> FrameCursor::fixed(unsigned width) {
  if (bytes_.size() < width) return std::nullopt;
  const std::uint64_t value = load_uint(bytes_, 0, width, header_->order);
  if (!skip(width)) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> FrameCursor::uleb128() {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    const auto byte = fixed(1);
    if (!byte) return std::nullopt;
    value |= (*byte & 0x7f) << shift;
    if ((*byte & 0x80) == 0) return value;
  }
  return std::nullopt;
}

std::optional<std::int64_t> FrameCursor::sleb128() {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    const auto byte = fixed(1);
    if (!byte) return std::nullopt;
    value |= (*byte & 0x7f) << shift;
    if ((*byte & 0x80) != 0) continue;
    if ((*byte & 0x40) != 0 && shift + 7 < 64) value |= ~std::uint64_t{0} << (shift + 7);
    return static_cast<std::int64_t>(value);
  }
  return std::nullopt;
}

std::optional<std::string> FrameCursor::augmentation() {
  std::string text;
  while (text.size() <= kLongestAugmentation) {
    const auto c = fixed(1);
    if (!c) return std::nullopt;
    if (*c == 0) return text;
    text.push_back(static_cast<char>(*c));
  }
  return std::nullopt;
}

bool FrameCursor::skip(std::uint64_t count) {
  if (count > bytes_.size()) return false;
  bytes_ = bytes_.subspan(static_cast<std::size_t>(count));
  address_.value += count;
  return true;
}

std::optional<std::uint64_t> FrameCursor::unrelated(unsigned encoding) {
  const auto sign_extended = [&](unsigned width) -> std::optional<std::uint64_t> {
    const auto value = fixed(width);
    if (!value) return std::nullopt;
    const std::uint64_t sign = std::uint64_t{1} << (8 * width - 1);
    return (*value ^ sign) - sign;
  };
  switch (encoding & kFormatBits) {
    case DW_EH_PE_absptr:
      return fixed(header_->word());
    case DW_EH_PE_udata2:
      return fixed(2);
    case DW_EH_PE_udata4:
      return fixed(4);
    case DW_EH_PE_udata8:
    case DW_EH_PE_sdata8:
      return fixed(8);
    case DW_EH_PE_sdata2:
      return sign_extended(2);
    case DW_EH_PE_sdata4:
      return sign_extended(4);
    default:
      return std::nullopt;
  }
}

std::optional<VirtAddr> FrameCursor::pointer(unsigned encoding, std::optional<VirtAddr> data_base) {
  if ((encoding & kIndirect) != 0) return std::nullopt;
  const std::uint64_t field = address_.value;
  const auto value = unrelated(encoding);
  if (!value) return std::nullopt;
  switch (encoding & kRelationBits) {
    case 0:
      return wrap_address(*value, *header_);
    case DW_EH_PE_pcrel:
      return wrap_address(*value + field, *header_);
    case DW_EH_PE_datarel:
      if (!data_base) return std::nullopt;
      return wrap_address(*value + data_base->value, *header_);
    default:
      return std::nullopt;
  }
}

namespace {

// The data of 'z', of which `cursor` is a copy.
bool read_augmentation_data(FrameCursor cursor, CieFields& cie) {
  for (const char c : cie.augmentation.substr(1)) {
    if (c == 'S') cie.signal_frame = true;
    if (c == 'B') cie.b_key = true;
    if (c == 'S' || c == 'B' || c == 'G') continue;  // G, frames with memory tags: no data either
    const auto encoding = cursor.fixed(1);
    if (!encoding) return false;
    const auto value = static_cast<unsigned>(*encoding);
    if (c == 'R') {
      cie.pointer_encoding = value;
    } else if (c == 'L') {
      cie.lsda_encoding = value;
    } else if (c != 'P' || (value != DW_EH_PE_omit && !cursor.unrelated(value))) {
      return false;  // of the personality only the length matters
    }
  }
  return true;
}

}  // namespace

tl::expected<CieFields, std::string> read_cie_fields(FrameCursor& cursor, unsigned pointer_width,
                                                     const ElfHeader& header) {
  const auto id = cursor.fixed(pointer_width);
  const auto version = cursor.fixed(1);
  if (id != 0 || (version != 1 && version != 3))
    return tl::unexpected(std::string("no CIE is there"));
  auto augmentation = cursor.augmentation();
  // GCC 2: a pointer to its exception table stands before the alignment factors.
  const bool old = augmentation && augmentation->starts_with("eh");
  const bool begun = augmentation && (!old || cursor.skip(header.word()));
  const auto code_alignment = begun ? cursor.uleb128() : std::nullopt;
  const auto data_alignment = code_alignment ? cursor.sleb128() : std::nullopt;
  const auto return_register = !data_alignment ? std::nullopt
                               : *version == 1 ? cursor.fixed(1)
                                               : cursor.uleb128();
  if (!return_register) return tl::unexpected(std::string("the CIE is cut off"));
  CieFields cie;
  cie.version = static_cast<std::uint8_t>(*version);
  cie.augmentation = std::move(*augmentation);
  cie.code_alignment = *code_alignment;
  cie.data_alignment = *data_alignment;
  cie.return_register = *return_register;
  if (cie.augmentation.empty() || cie.augmentation == "eh") return cie;
  const auto size = cie.sized() ? cursor.uleb128() : std::nullopt;
  if (!size || !read_augmentation_data(cursor, cie)) {
    return tl::unexpected("unknown augmentation \"" + cie.augmentation + "\"");
  }
  cie.augmentation_size = *size;
  return cie;
}

FrameHeader read_frame_header(ByteView bytes, VirtAddr address, const ElfHeader& header) {
  FrameCursor cursor(bytes, address, header);
  const auto version = cursor.fixed(1);
  const auto eh_frame_encoding = cursor.fixed(1);
  const auto count_encoding = cursor.fixed(1);
  const auto table_encoding = cursor.fixed(1);
  FrameHeader result;
  if (!table_encoding || version != 1) return result;
  result.eh_frame = cursor.pointer(static_cast<unsigned>(*eh_frame_encoding), address);
  if (!result.eh_frame || *count_encoding != DW_EH_PE_udata4 ||
      *table_encoding != (DW_EH_PE_datarel | DW_EH_PE_sdata4))
    return result;
  result.count = cursor.fixed(4);
  result.entries = cursor.rest();
  result.entries_address = cursor.address();
  return result;
}

std::optional<CieFields> FrameReader::parse_cie(VirtAddr address) const {
  auto head = read_head(*file_, address);
  if (!head || head->length == 0) return std::nullopt;
  auto cie = read_cie_fields(head->body, head->is64bit_format ? 8 : 4, file_->header());
  // A signal trampoline's FDE starts a byte before its code, at no instruction.
  if (!cie || cie->signal_frame) return std::nullopt;
  return std::move(*cie);
}

std::optional<Fde> FrameReader::parse_fde(FrameCursor cursor, const CieFields& cie) const {
  const VirtAddr field = cursor.address();
  const auto start = cursor.pointer(cie.pointer_encoding);
  const auto size = cursor.unrelated(cie.pointer_encoding & kFormatBits);
  if (!start || !size || *size == 0) return std::nullopt;
  // A field of 0 belongs to a discarded function (libgcc unwind-dw2-fde.c skips it too).
  const bool relative = (cie.pointer_encoding & kRelationBits) == DW_EH_PE_pcrel;
  if (*start == (relative ? field : VirtAddr{0})) return std::nullopt;
  Fde fde{*start, Size{wrap_address(*size, file_->header()).value}, false, {}};
  if (cie.sized() && cie.lsda_encoding != DW_EH_PE_omit) {
    const bool sized = cursor.uleb128().has_value();
    FrameCursor pointer = cursor;
    const auto lsda = sized ? cursor.unrelated(cie.lsda_encoding) : std::nullopt;
    // What cannot be read may be there.
    fde.has_lsda = !lsda || *lsda != 0;
    if (lsda && *lsda != 0) fde.lsda = pointer.pointer(cie.lsda_encoding);
  }
  return fde;
}

std::optional<FrameRecord> FrameReader::read(VirtAddr address) {
  auto head = read_head(*file_, address);
  if (!head) return std::nullopt;
  FrameRecord record;
  record.next = head->next;
  if (head->length == 0) {
    record.terminator = true;
    return record;
  }
  const VirtAddr id_field = head->body.address();
  const auto id = head->body.fixed(head->is64bit_format ? 8 : 4);
  if (!id) return std::nullopt;
  if (*id == 0) {
    record.cie = true;
    return record;
  }
  const VirtAddr cie_address{id_field.value - *id};
  if (cie_address_ != cie_address) {
    cie_ = parse_cie(cie_address);
    cie_address_ = cie_address;
  }
  if (cie_) record.fde = parse_fde(head->body, *cie_);
  return record;
}

}  // namespace reprobe
