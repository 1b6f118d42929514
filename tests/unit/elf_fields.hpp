// Where each field of the ELF structures stands, for writing and poking test files. Written from
// the tables of the System V ABI (chapter 4) and ELF-64 Object File Format, not from the reader:
// it is what the reader is tested against.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace reprobe::test {

// A place in a file: bytes from its start, and the width in bytes.
struct Field {
  std::size_t at{};
  unsigned width{};
};

struct FieldName {
  std::string_view name;
  Field in32;
  Field in64;
};

inline constexpr FieldName kFields[] = {
    {"e_type", {16, 2}, {16, 2}},       {"e_machine", {18, 2}, {18, 2}},
    {"e_version", {20, 4}, {20, 4}},    {"e_entry", {24, 4}, {24, 8}},
    {"e_phoff", {28, 4}, {32, 8}},      {"e_shoff", {32, 4}, {40, 8}},
    {"e_flags", {36, 4}, {48, 4}},      {"e_ehsize", {40, 2}, {52, 2}},
    {"e_phentsize", {42, 2}, {54, 2}},  {"e_phnum", {44, 2}, {56, 2}},
    {"e_shentsize", {46, 2}, {58, 2}},  {"e_shnum", {48, 2}, {60, 2}},
    {"e_shstrndx", {50, 2}, {62, 2}},

    {"p_type", {0, 4}, {0, 4}},         {"p_flags", {24, 4}, {4, 4}},
    {"p_offset", {4, 4}, {8, 8}},       {"p_vaddr", {8, 4}, {16, 8}},
    {"p_paddr", {12, 4}, {24, 8}},      {"p_filesz", {16, 4}, {32, 8}},
    {"p_memsz", {20, 4}, {40, 8}},      {"p_align", {28, 4}, {48, 8}},

    {"sh_name", {0, 4}, {0, 4}},        {"sh_type", {4, 4}, {4, 4}},
    {"sh_flags", {8, 4}, {8, 8}},       {"sh_addr", {12, 4}, {16, 8}},
    {"sh_offset", {16, 4}, {24, 8}},    {"sh_size", {20, 4}, {32, 8}},
    {"sh_link", {24, 4}, {40, 4}},      {"sh_info", {28, 4}, {44, 4}},
    {"sh_addralign", {32, 4}, {48, 8}}, {"sh_entsize", {36, 4}, {56, 8}},

    {"st_name", {0, 4}, {0, 4}},        {"st_info", {12, 1}, {4, 1}},
    {"st_other", {13, 1}, {5, 1}},      {"st_shndx", {14, 2}, {6, 2}},
    {"st_value", {4, 4}, {8, 8}},       {"st_size", {8, 4}, {16, 8}},

    {"r_offset", {0, 4}, {0, 8}},       {"r_info", {4, 4}, {8, 8}},
    {"r_addend", {8, 4}, {16, 8}},
};

// The field of a structure that starts at `start`.
inline Field field_of(std::string_view name, bool is64, std::size_t start) {
  for (const FieldName& f : kFields)
    if (f.name == name)
      return is64 ? Field{start + f.in64.at, f.in64.width} : Field{start + f.in32.at, f.in32.width};
  throw std::logic_error("no such ELF field: " + std::string(name));
}

// Writes the low bytes of `value`; the file grows where it is too short.
inline void put(std::vector<std::byte>& file, Field field, std::endian order, std::uint64_t value) {
  if (file.size() < field.at + field.width) file.resize(field.at + field.width);
  for (unsigned i = 0; i < field.width; ++i) {
    const unsigned place = order == std::endian::big ? field.width - 1 - i : i;
    file[field.at + place] = static_cast<std::byte>((value >> (8 * i)) & 0xff);
  }
}

inline std::uint64_t get(const std::vector<std::byte>& file, Field field, std::endian order) {
  std::uint64_t value = 0;
  for (unsigned i = 0; i < field.width; ++i) {
    const unsigned place = order == std::endian::big ? field.width - 1 - i : i;
    value |= std::to_integer<std::uint64_t>(file.at(field.at + place)) << (8 * i);
  }
  return value;
}

}  // namespace reprobe::test
