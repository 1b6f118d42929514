// Sends the code of unwind_test.S to its stubs and puts the tables that libprobe makes where the
// program has room for them. Usage: attach IN OUT [over]; over: in the old search table
#include "libprobe/code/unwind.hpp"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>

using namespace reprobe;

namespace {

[[noreturn]] void die(const std::string& why) {
  std::cerr << why << '\n';
  std::exit(1);
}

template <typename T>
T need(Result<T> result) {
  if (!result) die(result.error().where + ": " + result.error().message);
  return std::move(*result);
}

struct Patch {
  std::uint64_t kind, place, size, stub;
};

struct Map {
  std::vector<Stub> stubs;
  std::vector<Patch> patches;
};

Map read_map(const ElfFile& file) {
  const ByteView bytes = need(file.contents(*file.section(".stubmap")));
  Map map;
  Stub stub;
  std::size_t at = 0;
  const auto word = [&] {
    const std::uint64_t value = load_uint(bytes, at, 8, std::endian::little);
    at += 8;
    return value;
  };
  while (at < bytes.size()) {
    const std::uint64_t start = word();
    if (start != 0) {
      const std::uint64_t size = word();
      const std::uint64_t original = word();
      stub.pieces.push_back(
          {VirtAddr{start}, Size{size}, VirtAddr{original}, static_cast<std::int64_t>(word())});
      continue;
    }
    const std::uint64_t kind = word(), place = word(), length = word();
    map.patches.push_back({kind, place, length, word()});
    map.stubs.push_back(std::exchange(stub, {}));
  }
  return map;
}

void put(Bytes& out, std::uint64_t at, const Bytes& bytes) {
  std::copy(bytes.begin(), bytes.end(), out.begin() + static_cast<std::ptrdiff_t>(at));
}

// `opcode` with the distance to the stub; the sled's stop is in the stub now.
void apply(Bytes& out, const ElfFile& file, const Patch& patch) {
  const std::uint64_t at = file.offset_of(VirtAddr{patch.place})->value;
  const bool call = patch.kind == 1;
  const std::uint64_t jump = at + (call ? patch.size : 0);
  const std::uint64_t next = patch.place + (jump - at) + 5;
  for (std::uint64_t i = 0; i < patch.size; ++i) out[at + i] = std::byte{0x90};
  out[jump] = call ? std::byte{0xe8} : std::byte{0xe9};
  store_uint(out, jump + 1, 4, std::endian::little, (patch.stub - next) & 0xffffffff);
}

// PT_GNU_EH_FRAME.
void point_to_table(Bytes& out, const ElfFile& file, const Section& hdr, const UnwindTables& tables,
                    bool missing) {
  // A static program has no PT_GNU_EH_FRAME: its last PT_NOTE becomes one.
  const Segment* header = nullptr;
  for (const Segment& segment : file.segments())
    if (segment.type == (missing ? PT_NOTE : PT_GNU_EH_FRAME)) header = &segment;
  const std::uint64_t at = header->header_offset.value;
  store_uint(out, at, 4, std::endian::little, PT_GNU_EH_FRAME);
  for (const auto& [field, value] : {std::pair{8U, hdr.offset.value},
                                     {16U, hdr.addr.value},
                                     {24U, hdr.addr.value},
                                     {32U, std::uint64_t{tables.eh_frame_hdr.size()}},
                                     {40U, std::uint64_t{tables.eh_frame_hdr.size()}}})
    store_uint(out, at + field, 8, std::endian::little, value);
}

}  // namespace

int main(int argc, char** argv) {
  const bool over_old = argc > 3;
  const auto source = need(map_file(argv[1]));
  const ElfFile file = need(ElfFile::open(source));
  const Map map = read_map(file);
  const ByteView all = need(source->slice(FileOffset{0}, Size{source->size()}, "file"));
  Bytes out(all.begin(), all.end());
  for (const Patch& patch : map.patches) apply(out, file, patch);

  UnwindWriter writer = need(UnwindWriter::open(file, over_old ? Size{0} : kMostRebuilt));
  const Section& eh_frame = *file.section(".stub_eh_frame");
  const Section& hdr = *file.section(".stub_hdr");
  const Section& debug_frame = *file.section(".debug_frame");
  const UnwindSizes sizes = need(writer.sizes(map.stubs));
  const UnwindTables tables = need(writer.build(map.stubs, {eh_frame.addr, hdr.addr, 0}));
  if (tables.eh_frame.size() != sizes.eh_frame.value ||
      tables.eh_frame_hdr.size() != sizes.eh_frame_hdr.value ||
      tables.debug_frame.size() != sizes.debug_frame.value)
    die("other sizes than promised");
  if (tables.eh_frame.size() > eh_frame.size.value || tables.eh_frame_hdr.size() > hdr.size.value ||
      tables.debug_frame.size() > debug_frame.size.value)
    die("no room for the tables");
  put(out, eh_frame.offset.value, tables.eh_frame);
  put(out, hdr.offset.value, tables.eh_frame_hdr);
  put(out, debug_frame.offset.value, tables.debug_frame);
  if (tables.table_edit.has_value() != over_old) die("the other place of the table");
  if (over_old)
    put(out, file.offset_of(tables.table_edit->first)->value, tables.table_edit->second);
  store_uint(out, debug_frame.header_offset.value + 32, 8, std::endian::little,
             tables.debug_frame.size());

  if (!tables.eh_frame_hdr.empty())
    point_to_table(out, file, hdr, tables, writer.needs_program_header());
  std::ofstream(argv[2], std::ios::binary)
      .write(as_text(out).data(), static_cast<std::streamsize>(out.size()));
}
