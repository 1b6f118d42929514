// Tables for stubs of many functions of real libraries: searched as libgcc does (find_fde_tail),
// they give every function the rows that it had, and every stub those of its code.
#include <algorithm>
#include <filesystem>

#include "catch.hpp"
#include "libprobe/code/unwind.hpp"
#include "mapped_files.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

constexpr std::uint64_t kPieces = 3, kPiece = 5, kDistance = 32;

// The rows at an address by way of a search table; nothing where no FDE covers it. `end`: the
// return address is undefined, an unwinder stops.
struct Found {
  CfiRow row;
  bool lsda{};
  bool end{};
};

std::optional<Found> find(const ElfFile& file, const UnwindIndex& index, VirtAddr address) {
  const auto after = std::ranges::upper_bound(index.entries, address, {}, &UnwindEntry::start);
  if (after == index.entries.begin()) return std::nullopt;
  std::optional<CfiCie> cie;
  const auto fde = read_fde(file, std::prev(after)->fde, cie);
  REQUIRE(fde);
  // LLVM's libunwind goes by the FDE's start, libgcc by the table's.
  REQUIRE(fde->start == std::prev(after)->start);
  if (!in_range(address.value, fde->start.value, fde->size.value)) return std::nullopt;
  const auto rows = read_rows(file, *cie, *fde);
  REQUIRE(rows);
  const CfiRow& row = rows->at(address);
  const auto ra = row.registers.find(cie->return_register);
  const bool end = ra != row.registers.end() && ra->second.kind == RegisterRule::Kind::undefined;
  return Found{row, fde->has_lsda, end};
}

// The expressions of a row are views into its file: only files that live can be compared.
bool same(const std::optional<Found>& a, const std::optional<Found>& b) {
  const bool none_a = !a || a->end;
  const bool none_b = !b || b->end;
  if (none_a || none_b) return none_a && none_b;
  return a->row == b->row && a->lsda == b->lsda;
}

struct Library {
  explicit Library(const std::string& path) {
    auto source = map_file(path);
    REQUIRE(source);
    auto opened = ElfFile::open(*source);
    REQUIRE(opened);
    file = std::move(*opened);
    auto read = read_unwind_index(*file);
    REQUIRE(read);
    index = std::move(*read);
    const auto all = (*source)->slice(FileOffset{0}, Size{(*source)->size()}, "all");
    REQUIRE(all);
    bytes.assign(all->begin(), all->end());
  }
  std::optional<ElfFile> file;
  UnwindIndex index;
  Bytes bytes;
};

// A stub from the middle of each `every`th function, behind everything else.
std::vector<Stub> stubs_of(const Library& library, std::size_t every) {
  std::uint64_t at = 0;
  for (const Segment& segment : library.file->segments())
    at = std::max(at, segment.vaddr.value + segment.memsz.value);
  at += 0x10000 - at % 0x10000;
  std::vector<Stub> stubs;
  auto writer = UnwindWriter::open(*library.file);
  REQUIRE(writer);
  for (std::size_t i = 0; i < library.index.entries.size(); i += every) {
    std::optional<CfiCie> cie;
    const auto fde = read_fde(*library.file, library.index.entries[i].fde, cie);
    REQUIRE(fde);
    if (fde->size.value < kPieces) continue;
    Stub stub;
    const std::uint64_t first = fde->start.value + (fde->size.value - kPieces) / 2;
    for (std::uint64_t piece = 0; piece < kPieces; ++piece)
      stub.pieces.push_back(
          {VirtAddr{at + piece * kPiece}, Size{kPiece}, VirtAddr{first + piece}, 0});
    if (!writer->check(stub.pieces)) continue;  // .plt
    stubs.push_back(std::move(stub));
    at += kDistance;
  }
  return stubs;
}

// The library with the tables in it: over its read-only data, which no test reads.
Bytes with_tables(const Library& library, const UnwindTables& tables, const UnwindPlaces& places) {
  Bytes bytes = library.bytes;
  const auto put = [&](VirtAddr address, const Bytes& what) {
    if (what.empty()) return;
    const auto at = library.file->offset_of(address);
    REQUIRE(at);
    std::ranges::copy(what, bytes.begin() + static_cast<std::ptrdiff_t>(at->value));
  };
  put(places.eh_frame, tables.eh_frame);
  put(places.eh_frame_hdr, tables.eh_frame_hdr);
  if (tables.table_edit) put(tables.table_edit->first, tables.table_edit->second);
  if (tables.table_edit) return bytes;
  for (const Segment& segment : library.file->segments()) {
    if (segment.type != PT_GNU_EH_FRAME) continue;
    const auto header = static_cast<std::size_t>(segment.header_offset.value);
    store_uint(bytes, header + 16, 8, std::endian::little, places.eh_frame_hdr.value);
    store_uint(bytes, header + 32, 8, std::endian::little, tables.eh_frame_hdr.size());
  }
  return bytes;
}

void check_library(const std::string& path, Size most_rebuilt, std::size_t every) {
  CAPTURE(path, most_rebuilt.value);
  const Library library(path);
  const std::vector<Stub> stubs = stubs_of(library, every);
  REQUIRE(stubs.size() > 40);
  auto writer = UnwindWriter::open(*library.file, most_rebuilt);
  REQUIRE(writer);
  const auto sizes = writer->sizes(stubs);
  REQUIRE(sizes);
  const Section* rodata = library.file->section(".rodata");
  REQUIRE(rodata != nullptr);
  UnwindPlaces places{VirtAddr{(rodata->addr.value + 7) / 8 * 8}, {}, 0};
  places.eh_frame_hdr = VirtAddr{places.eh_frame.value + sizes->eh_frame.value};
  REQUIRE(sizes->eh_frame.value + sizes->eh_frame_hdr.value + 8 <= rodata->size.value);
  const auto tables = writer->build(stubs, places);
  REQUIRE(tables);
  CHECK(tables->table_edit.has_value() == (most_rebuilt.value == 0));

  const auto after = ElfFile::open(memory_source(with_tables(library, *tables, places)));
  REQUIRE(after);
  const auto index = read_unwind_index(*after);
  REQUIRE(index);
  // At each function's first and last byte, in its middle, and on both sides of it.
  std::size_t compared = 0;
  bool all_same = true;
  for (const UnwindEntry& entry : library.index.entries) {
    std::optional<CfiCie> cie;
    const auto fde = read_fde(*library.file, entry.fde, cie);
    REQUIRE(fde);
    const std::uint64_t end = fde->start.value + fde->size.value;
    for (const std::uint64_t at : {fde->start.value - 1, fde->start.value,
                                   fde->start.value + fde->size.value / 2, end - 1, end}) {
      const bool equal = same(find(*library.file, library.index, VirtAddr{at}),
                              find(*after, *index, VirtAddr{at}));
      if (!equal) CHECK(at == 0);  // shows the address
      all_same = all_same && equal;
      ++compared;
    }
  }
  CHECK(all_same);
  CHECK(compared > 1000);
  for (const Stub& stub : stubs) {
    for (const StubPiece& piece : stub.pieces) {
      for (const std::uint64_t at : {piece.start.value, piece.start.value + kPiece - 1}) {
        auto original = find(*library.file, library.index, piece.original);
        const auto moved = find(*after, *index, VirtAddr{at});
        REQUIRE(original);
        REQUIRE(moved);
        original->lsda = false;  // no exception begins in a stub
        REQUIRE(same(original, moved));
      }
    }
    const std::uint64_t behind = stub.pieces.back().start.value + kPiece;
    const auto gap = find(*after, *index, VirtAddr{behind});
    // Padding of stubs that share an FDE runs never, and costs no row.
    if (most_rebuilt.value != 0) CHECK_FALSE(gap);
  }
}

}  // namespace

TEST_CASE("unwind: a library's functions and stubs are found, with a new table and in the old") {
  const Size most_rebuilt{GENERATE(std::uint64_t{0}, ~std::uint64_t{0})};
  std::size_t checked = 0;
  for (const MappedFile& mapped : mapped_files()) {
    const std::string name = std::filesystem::path(mapped.path).filename().string();
    if (name.starts_with("libstdc++.so")) check_library(mapped.path, most_rebuilt, 50);
    if (name.starts_with("libc.so")) check_library(mapped.path, most_rebuilt, 20);
    checked += name.starts_with("libstdc++.so") || name.starts_with("libc.so") ? 1 : 0;
  }
  CHECK(checked > 0);
}
