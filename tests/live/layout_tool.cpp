// Gives a file room and puts a small piece of code there: what layout_test.py starts.
//
//   layout_tool IN OUT SIZE [--patch ADDRESS] [--eh-frame-hdr]
//
// --patch: the 5 bytes at the address, `mov $1, %eax`, become a jump into the room, where a
// `mov $2, %eax` and a jump back stand. --eh-frame-hdr: PT_GNU_EH_FRAME points to a header in the
// room without a search table. Prints "KIND ADDRESS OFFSET".
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>

#include "libprobe/rewrite/layout.hpp"

namespace {

using namespace reprobe;

constexpr std::uint64_t kMov = 5, kJump = 5, kTables = 32;

[[noreturn]] void end(const Error& error) {
  std::cerr << error.where << ": " << error.message << '\n';
  std::exit(error.code == ErrorCode::refused ? 4 : 5);
}

template <typename T>
T must(Result<T> result) {
  if (!result) end(result.error());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

void put(Bytes& bytes, std::size_t at, std::uint8_t opcode, std::uint64_t operand) {
  bytes[at] = std::byte{opcode};
  store_uint(bytes, at + 1, 4, std::endian::little, operand & 0xffffffff);
}

// LSB Core 5.0, 10.6.2: version 1, DW_EH_PE_pcrel|sdata4, no count, no table.
void put_eh_frame_hdr(const ElfFile& file, const Room& room, Bytes& bytes) {
  const Section* frames = file.section(".eh_frame");
  if (frames == nullptr) end({ErrorCode::refused, ".eh_frame", "missing", ""});
  store_uint(bytes, kTables, 4, std::endian::little, 0xffff1b01);
  const std::uint64_t from = room.address.value + kTables + 4;
  store_uint(bytes, kTables + 4, 4, std::endian::little, (frames->addr.value - from) & 0xffffffff);
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 4) return 2;
  const auto source = must(map_file(arguments[1]));
  const ElfFile file = must(ElfFile::open(source));
  const std::uint64_t size = std::stoull(arguments[3], nullptr, 0);
  const Room room = must(find_room(file, {.size = Size{size}}));

  Plan plan;
  Bytes bytes(static_cast<std::size_t>(size), std::byte{0xcc});
  RoomContents contents;
  for (int i = 4; i < count; ++i) {
    if (std::string(arguments[i]) == "--eh-frame-hdr") {
      put_eh_frame_hdr(file, room, bytes);
      contents.eh_frame_hdr = {VirtAddr{room.address.value + kTables}, Size{8}};
      continue;
    }
    const VirtAddr site{std::stoull(arguments[++i], nullptr, 0)};
    const auto offset = file.offset_of(site);
    if (!offset) end({ErrorCode::refused, "", "the site is not in the file", ""});
    Bytes jump(kJump);
    put(jump, 0, 0xe9, room.address.value - (site.value + kJump));
    must(plan.replace(*source, *offset, std::move(jump), "jump to the room"));
    put(bytes, 0, 0xb8, 2);
    put(bytes, kMov, 0xe9, site.value + kJump - (room.address.value + kMov + kJump));
  }

  SectionTable table = must(SectionTable::of(file));
  Section section;
  section.name = kSledSection;
  section.type = SHT_PROGBITS;
  section.flags = SHF_ALLOC | SHF_EXECINSTR;
  section.addr = room.address;
  section.size = Size{size};
  section.addralign = Size{16};
  contents.bytes = std::move(bytes);
  contents.sections = {&section, 1};
  must(place(plan, table, file, room, std::move(contents)));
  must(table.write(plan));

  const Bytes output = must(apply(plan, *source));
  std::ofstream(arguments[2], std::ios::binary) << as_text(output);
  constexpr const char* kKinds[] = {"gap", "spare_header", "grown_headers", "moved_headers"};
  std::cout << kKinds[static_cast<int>(room.kind)] << std::hex << " 0x" << room.address.value
            << " 0x" << room.offset.value << '\n';
}
