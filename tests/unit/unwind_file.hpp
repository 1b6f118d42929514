// A file with functions and their call frame programs, for tests of the tables of stubs.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "elf_builder.hpp"
#include "frame_builder.hpp"
#include "libprobe/code/unwind.hpp"

namespace reprobe::test {

// Where things stand in it: text, then the program's tables, room for stubs, for new tables.
inline constexpr std::uint64_t kText = 0x1000, kFrame = 0x3000, kHeader = 0x4000, kStubs = 0x9000,
                               kNewFrame = 0xa000, kNewHeader = 0xb000;

struct TestFunction {
  std::uint64_t start{};
  std::uint64_t size{};
  Bytes program{};
  std::string augmentation{"zR"};
  Bytes lsda{};  // 4 bytes with "zLR"
};

class UnwindFile {
 public:
  explicit UnwindFile(const ElfBuilder::Kind& kind = {.machine = EM_X86_64})
      : kind_(kind), frame_(kFrame, kind.is64 ? 8 : 4, kind.order) {}

  void function(const TestFunction& f) {
    const bool lsda = f.augmentation.find('L') != std::string::npos;
    const std::uint64_t cie = this->cie(f.augmentation, lsda);
    const std::uint64_t at = frame_.bytes().size();
    const std::uint64_t begin = f.start - (kFrame + at + 8);
    Bytes body = number(at + 4 - cie) + number(begin) + number(f.size) +
                 frame_.number(f.lsda.size(), 1) + f.lsda + f.program;
    record(std::move(body));
    table_.emplace_back(f.start, at);
  }

  // Stubs' code and new tables are bytes of the file where they are given.
  Bytes build(const UnwindTables& tables = {}, bool program_header = true,
              bool search_table = true) {
    ElfBuilder elf(kind_);
    const auto section = [&](const char* name, std::uint64_t addr, Bytes bytes,
                             std::uint64_t flags = SHF_ALLOC) {
      const auto index =
          elf.section({.name = name, .flags = flags, .addr = addr, .bytes = std::move(bytes)});
      elf.load(PF_R | (flags == SHF_ALLOC ? 0 : PF_X), index);
      return index;
    };
    section(".text", kText, Bytes(0x1000), SHF_ALLOC | SHF_EXECINSTR);
    Bytes frame = frame_.bytes() + frame_.number(0, 4);
    section(".eh_frame", kFrame, frame);
    Bytes header = frame_.header(kHeader, search_table ? table_ : decltype(table_){});
    if (tables.table_edit) {
      const auto at = static_cast<std::ptrdiff_t>(tables.table_edit->first.value - kHeader);
      const Bytes& edit = tables.table_edit->second;
      REQUIRE(static_cast<std::size_t>(at) + edit.size() <= header.size());
      std::copy(edit.begin(), edit.end(), header.begin() + at);
    }
    auto hdr = section(".eh_frame_hdr", kHeader, std::move(header));
    section(".stubs", kStubs, Bytes(0x800), SHF_ALLOC | SHF_EXECINSTR);
    if (!tables.eh_frame.empty()) section(".new_frame", kNewFrame, tables.eh_frame);
    if (!tables.eh_frame_hdr.empty()) hdr = section(".new_hdr", kNewHeader, tables.eh_frame_hdr);
    if (program_header) elf.load(PF_R, hdr, 0, PT_GNU_EH_FRAME);
    if (dynamic) elf.segment({.type = PT_DYNAMIC});
    return elf.build();
  }

  Bytes number(std::uint64_t value) const { return frame_.number(value, 4); }

  bool dynamic{};

 private:
  // One for each augmentation: def_cfa 7, 8; the return address, column 16, at CFA - 8.
  std::uint64_t cie(const std::string& augmentation, bool lsda) {
    for (const auto& [text, at] : cies_)
      if (text == augmentation) return at;
    const std::uint64_t at = frame_.bytes().size();
    Bytes body = number(0) + hex("01") + bytes_of(augmentation) + hex("00 01 78 10") +
                 (lsda ? hex("02 1b 1b") : hex("01 1b")) + hex("0c0708 9001");
    record(std::move(body));
    cies_.emplace_back(augmentation, at);
    return at;
  }

  void record(Bytes body) {
    while (body.size() % 4 != 0) body.push_back(std::byte{0});
    frame_.raw(number(body.size()) + body);
  }

  ElfBuilder::Kind kind_;
  FrameBuilder frame_;
  std::vector<std::pair<std::string, std::uint64_t>> cies_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> table_;
};

// Pieces one behind the other, from an address on: size, original, adjustment.
struct PieceOf {
  std::uint64_t size{};
  std::uint64_t original{};
  std::int64_t adjust{};
};
inline Stub stub_at(std::uint64_t address, const std::vector<PieceOf>& pieces) {
  Stub stub;
  for (const PieceOf& piece : pieces) {
    stub.pieces.push_back(
        {VirtAddr{address}, Size{piece.size}, VirtAddr{piece.original}, piece.adjust});
    address += piece.size;
  }
  return stub;
}

inline constexpr UnwindPlaces kPlaces{VirtAddr{kNewFrame}, VirtAddr{kNewHeader}, 0};

inline ElfFile opened(Bytes bytes) {
  auto file = ElfFile::open(memory_source(std::move(bytes)));
  REQUIRE(file);
  return std::move(*file);
}

// The tables, or the reason why there are none.
inline Result<UnwindTables> built(const ElfFile& file, const std::vector<Stub>& stubs,
                                  Size most_rebuilt = kMostRebuilt,
                                  const UnwindPlaces& places = kPlaces) {
  auto writer = UnwindWriter::open(file, most_rebuilt);
  if (!writer) return tl::unexpected(writer.error());
  return writer->build(stubs, places);
}

}  // namespace reprobe::test
