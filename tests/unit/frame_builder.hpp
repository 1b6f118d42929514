// .eh_frame and .eh_frame_hdr for tests. It shares no code with the reader.
// Format: LSB Core 5.0, 10.6.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "code_bytes.hpp"
#include "elf_fields.hpp"

namespace reprobe::test {

class FrameBuilder {
 public:
  // `address` is .eh_frame's.
  FrameBuilder(std::uint64_t address, unsigned word, std::endian order)
      : address_(address), word_(word), order_(order) {}

  // A CIE with the augmentation and its data, as given; gives its offset.
  std::uint64_t cie(std::string_view augmentation, const Bytes& data, int version = 1) {
    Bytes body = number(0, 4);
    body.push_back(static_cast<std::byte>(version));
    body = body + text(augmentation);
    if (augmentation == "eh") body = body + number(0, word_);
    body = body + hex("01 78 10");  // code alignment 1, data alignment -8, return register 16
    if (!augmentation.empty() && augmentation.front() == 'z')
      body = body + number(data.size(), 1) + data;
    return record(body);
  }

  struct Range {
    std::uint64_t start{};
    std::uint64_t size{};
  };

  // An FDE of the CIE at `cie`, its pointers encoded as said: DW_EH_PE_absptr 0x00, udata2 0x02,
  // udata4 0x03, udata8 0x04, sdata4 0x0b, sdata8 0x0c; | 0x10 pcrel. `augmentation` stands
  // behind them.
  std::uint64_t fde(std::uint64_t cie, Range range, unsigned encoding,
                    const Bytes& augmentation = hex("00"), bool format64 = false) {
    const unsigned format = encoding & 0x0f;
    const unsigned width = format == 0                     ? word_
                           : format == 2 || format == 0x0a ? 2
                           : format == 4 || format == 0x0c ? 8
                                                           : 4;
    const std::uint64_t head = format64 ? 12 : 4;
    const std::uint64_t pointer = format64 ? 8 : 4;
    const std::uint64_t id = bytes_.size() + head;
    Bytes body = number(id - cie, static_cast<unsigned>(pointer));
    std::uint64_t value = range.start;
    if ((encoding & 0x70) == 0x10) value -= address_ + id + pointer;
    body = body + number(value, width) + number(range.size, width) + augmentation;
    return record(body, format64);
  }

  void terminator() { bytes_ = bytes_ + number(0, 4); }
  void raw(const Bytes& bytes) { bytes_ = bytes_ + bytes; }

  const Bytes& bytes() const { return bytes_; }

  // .eh_frame_hdr at `address`: pairs of a function's start and its FDE's offset.
  Bytes header(std::uint64_t address, std::vector<std::pair<std::uint64_t, std::uint64_t>> table,
               bool sorted = true) const {
    if (sorted) std::ranges::sort(table);
    Bytes bytes = hex("01 1b 03 3b");
    bytes = bytes + number(address_ - (address + 4), 4) + number(table.size(), 4);
    for (const auto& [start, fde] : table)
      bytes = bytes + number(start - address, 4) + number(address_ + fde - address, 4);
    return bytes;
  }

  Bytes number(std::uint64_t value, unsigned width) const {
    Bytes bytes;
    put(bytes, {0, width}, order_, value);
    return bytes;
  }

 private:
  static Bytes text(std::string_view s) {
    Bytes bytes;
    for (const char c : s) bytes.push_back(static_cast<std::byte>(c));
    bytes.push_back(std::byte{0});
    return bytes;
  }

  std::uint64_t record(Bytes body, bool format64 = false) {
    const std::uint64_t at = bytes_.size();
    while (body.size() % 4 != 0) body.push_back(std::byte{0});  // DW_CFA_nop
    if (format64) bytes_ = bytes_ + hex("ffffffff") + number(body.size(), 8);
    if (!format64) bytes_ = bytes_ + number(body.size(), 4);
    bytes_ = bytes_ + body;
    return at;
  }

  std::uint64_t address_;
  unsigned word_;
  std::endian order_;
  Bytes bytes_;
};

}  // namespace reprobe::test
