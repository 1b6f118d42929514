// The edge where bytes become numbers: the only code that is written for each class and byte
// order. Everything above it sees the 64-bit structs of file.hpp.
// Format: System V ABI, chapter 4 (Elf32_*) and ELF-64 Object File Format (Elf64_*).
#pragma once

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#include "libprobe/elf/file.hpp"

namespace reprobe {

// Takes the fields of one structure in the order in which they stand.
template <bool Is64, std::endian Order>
class FieldCursor {
 public:
  explicit FieldCursor(ByteView bytes) : bytes_(bytes) {}

  std::uint8_t byte() { return take<std::uint8_t>(); }
  std::uint16_t half() { return take<std::uint16_t>(); }
  std::uint32_t word() { return take<std::uint32_t>(); }
  // Addr, Off and the fields that are Elf32_Word in one class and Elf64_Xword in the other.
  std::uint64_t native() { return take<Native>(); }

 private:
  using Native = std::conditional_t<Is64, std::uint64_t, std::uint32_t>;

  template <typename T>
  T take() {
    // The callers' slices are long enough; a mistake there must not read outside the file.
    if (bytes_.size() < sizeof(T)) std::abort();
    T value;
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    if constexpr (Order != std::endian::native) value = swapped(value);
    return value;
  }

  static std::uint8_t swapped(std::uint8_t v) { return v; }
  static std::uint16_t swapped(std::uint16_t v) { return __builtin_bswap16(v); }
  static std::uint32_t swapped(std::uint32_t v) { return __builtin_bswap32(v); }
  static std::uint64_t swapped(std::uint64_t v) { return __builtin_bswap64(v); }

  ByteView bytes_;
};

struct NamedSection {
  Section section;
  std::uint32_t name{};  // sh_name: offset in the section name string table
};

template <bool Is64, std::endian Order>
struct ElfT {
  using Cursor = FieldCursor<Is64, Order>;

  // Bytes of each structure.
  static constexpr std::uint64_t ehdr = Is64 ? 64 : 52;
  static constexpr std::uint64_t phdr = Is64 ? 56 : 32;
  static constexpr std::uint64_t shdr = Is64 ? 64 : 40;
  static constexpr std::uint64_t sym = Is64 ? 24 : 16;
  static constexpr std::uint64_t rel = Is64 ? 16 : 8;
  static constexpr std::uint64_t rela = Is64 ? 24 : 12;

  // `after_ident` starts behind e_ident. Counts are as stated, not resolved.
  static ElfHeader header(ByteView after_ident) {
    Cursor c(after_ident);
    ElfHeader h;
    h.is64 = Is64;
    h.order = Order;
    h.type = c.half();
    h.machine = c.half();
    c.word();  // e_version: neither the kernel nor a dynamic linker looks at it
    h.entry = {c.native()};
    h.phoff = {c.native()};
    h.shoff = {c.native()};
    h.flags = c.word();
    c.half();  // e_ehsize: the structure's size follows from the class
    h.phentsize = c.half();
    h.phnum = c.half();
    h.shentsize = c.half();
    h.shnum = c.half();
    h.shstrndx = c.half();
    return h;
  }

  static Segment segment(ByteView bytes) {
    Cursor c(bytes);
    Segment s;
    s.type = c.word();
    if constexpr (Is64) s.flags = c.word();
    s.offset = {c.native()};
    s.vaddr = {c.native()};
    s.paddr = {c.native()};
    s.filesz = {c.native()};
    s.memsz = {c.native()};
    if constexpr (!Is64) s.flags = c.word();
    s.align = {c.native()};
    return s;
  }

  static NamedSection section(ByteView bytes) {
    Cursor c(bytes);
    NamedSection named;
    Section& s = named.section;
    named.name = c.word();
    s.type = c.word();
    s.flags = c.native();
    s.addr = {c.native()};
    s.offset = {c.native()};
    s.size = {c.native()};
    s.link = c.word();
    s.info = c.word();
    s.addralign = {c.native()};
    s.entsize = {c.native()};
    return named;
  }

  static Symbol symbol(ByteView bytes) {
    Cursor c(bytes);
    Symbol s;
    s.name_offset = c.word();
    if constexpr (!Is64) {
      s.value = {c.native()};
      s.size = {c.native()};
    }
    const std::uint8_t info = c.byte();
    s.binding = info >> 4;
    s.type = info & 0xf;
    s.other = c.byte();
    s.shndx = c.half();
    if constexpr (Is64) {
      s.value = {c.native()};
      s.size = {c.native()};
    }
    return s;
  }

  static Relocation relocation(ByteView bytes, bool has_addend) {
    Cursor c(bytes);
    Relocation r;
    r.offset = {c.native()};
    const std::uint64_t info = c.native();
    r.symbol = static_cast<std::uint32_t>(Is64 ? info >> 32 : info >> 8);
    r.type = static_cast<std::uint32_t>(Is64 ? info & 0xffffffff : info & 0xff);
    if (has_addend) {
      const std::uint64_t addend = c.native();
      r.addend = Is64 ? static_cast<std::int64_t>(addend)
                      : std::int64_t{static_cast<std::int32_t>(addend)};
    }
    return r;
  }
};

// Calls `f` with the ElfT of the class and order: the one place where they are looked at.
template <typename F>
decltype(auto) with_codec(bool is64, std::endian order, F&& f) {
  if (is64)
    return order == std::endian::little ? std::forward<F>(f)(ElfT<true, std::endian::little>{})
                                        : std::forward<F>(f)(ElfT<true, std::endian::big>{});
  return order == std::endian::little ? std::forward<F>(f)(ElfT<false, std::endian::little>{})
                                      : std::forward<F>(f)(ElfT<false, std::endian::big>{});
}

}  // namespace reprobe
