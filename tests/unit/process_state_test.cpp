// What /proc/PID/maps says, what a site's bytes say of tracers, and arguments as the kernel fetches
// them. Bytes: what Linux 6.18's and 7.2's uprobes leave at x86-64 sites
// (arch/x86/kernel/uprobes.c).
#include <initializer_list>

#include "catch.hpp"
#include "libprobe/process/mapping_groups.hpp"
#include "libprobe/process/maps.hpp"
#include "libprobe/process/site_state.hpp"
#include "libprobe/tracers/fetch_argument.hpp"

using namespace reprobe;

namespace {

Bytes bytes_of(std::initializer_list<int> values) {
  Bytes bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

const Bytes kNop = bytes_of({0x90, 0xc3, 0x55, 0x55});
const Bytes kNop5 = bytes_of({0x0f, 0x1f, 0x44, 0x00, 0x00});
const Bytes kTwo = bytes_of({0x90, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00});

std::pair<Armed, std::string> state(const Bytes& file, const Bytes& memory, std::uint64_t size,
                                    std::uint16_t machine = EM_X86_64) {
  ElfHeader header;
  header.is64 = true;
  header.machine = machine;
  const SiteState found = site_state(header, Nop{NopKind::nop, size}, file, memory);
  return {found.armed, found.how};
}

std::optional<std::string> fetch(const char* text, std::uint16_t machine = EM_X86_64) {
  return fetch_argument(parse_arguments(text, machine).at(0), machine);
}

}  // namespace

TEST_CASE("maps: fields, paths with blanks, deleted files, line feeds", "[process]") {
  const auto maps = parse_maps(
      "55d0c0a0000-55d0c0a1000 r-xp 00002000 fe:01 10961253                   /tmp/a b (deleted)\n"
      "7f00-7f10 rw-p 00000000 00:00 0 \n"
      "7f20-7f30 rw-s 00000000 00:00 0\n"
      "7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]\n"
      "7ffe00000000-7ffe00001000 --xp 00000000 103:2 7                          /tmp/a\\012b\n");
  REQUIRE(maps);
  REQUIRE(maps->size() == 5);
  const Mapping& file = maps->at(0);
  CHECK(file.start == 0x55d0c0a0000);
  CHECK(file.size() == 0x1000);
  CHECK(file.executable);
  CHECK_FALSE(file.writable);
  CHECK(file.offset == 0x2000);
  CHECK(file.inode == 10961253);
  CHECK(file.path == "/tmp/a b");
  CHECK(file.deleted);
  CHECK(maps->at(1).path.empty());
  CHECK(maps->at(2).writable);
  CHECK(maps->at(3).path == "[stack]");
  CHECK(maps->at(3).inode == 0);
  CHECK(maps->at(4).path == "/tmp/a\nb");
  CHECK(maps->at(4).executable);
}

TEST_CASE("maps: what the kernel writes can mean several names", "[process]") {
  const auto maps = parse_maps(
      "ff00000000000000-ff00000000200000 r-xp 00001000 00:01 5 /memfd:x (deleted)\n"
      "ff00000000200000-ff00000000201000 r--p 00000000 00:01 6 /tmp/a\\012b (deleted) (deleted)\n");
  REQUIRE(maps);
  CHECK(maps->at(0).start == 0xff00000000000000);
  CHECK(maps->at(0).path == "/memfd:x");
  using Names = std::vector<std::string>;
  CHECK(possible_paths(maps->at(1)) == Names{"/tmp/a\\012b (deleted) (deleted)",
                                             "/tmp/a\nb (deleted) (deleted)",
                                             "/tmp/a\\012b (deleted)", "/tmp/a\nb (deleted)"});
}

TEST_CASE("groups: files that are mapped as code, and what stands in their place", "[process]") {
  const auto maps = parse_maps(
      "1000-2000 r--p 00000000 08:01 7 /lib/moved.so\n"    // its code is a copy
      "2000-4000 r-xp 00000000 00:00 0 \n"                 //
      "4000-5000 rw-p 00003000 08:01 7 /lib/moved.so\n"    //
      "9000-a000 r--p 00000000 08:01 8 /usr/share/data\n"  // a gap: no neighbour
      "b000-c000 rwxp 00000000 00:00 0 \n"                 //
      "d000-e000 r-xp 00001000 08:01 9 /lib/whole.so\n"    //
      "d000-e000 r-xp 00001000 08:01 9 /lib/whole.so\n"    // seen twice while they changed
      "c000-d000 r--p 00000000 08:01 9 /lib/whole.so\n");
  REQUIRE(maps);
  const auto groups = group_mappings(*maps);
  REQUIRE(groups.size() == 2);
  CHECK_FALSE(groups[0].code);
  CHECK(groups[0].pieces->size() == 2);
  CHECK(piece_at(groups[0].copies, 0x3fff) != nullptr);
  CHECK(piece_at(groups[0].copies, 0x4000) == nullptr);
  CHECK(groups[1].code);
  CHECK(groups[1].pieces->front().start == 0xc000);
}

TEST_CASE("maps: lines that are none", "[process]") {
  for (const char* line :
       {"x", "10-20", "10-20 r-xp", "10-20 r-xp 0 fe:01", "10-20 r-xp 0 fe:01 z /a",
        "20-10 r-xp 0 fe:01 1 /a", "10-20 rx 0 fe:01 1 /a", "10 20 r-xp 0 fe:01 1 /a",
        "10-20 r-xp 0 fe 01 1 /a", "fffffffffffffffff-1 r-xp 0 fe:01 1 /a"}) {
    INFO(line);
    const auto maps = parse_maps(line);
    REQUIRE_FALSE(maps);
    CHECK(maps.error().code == ErrorCode::malformed);
  }
}

TEST_CASE("a site: as in the file, a trap, something else", "[process]") {
  using Found = std::pair<Armed, std::string>;
  CHECK(state(kNop, kNop, 1) == Found(Armed::no, ""));
  CHECK(state(kNop, bytes_of({0xcc, 0xc3, 0x55, 0x55}), 1) == Found(Armed::yes, "int3"));
  // What stands behind is not the site's.
  CHECK(state(kNop, bytes_of({0x90, 0xcc, 0x55, 0x55}), 1) == Found(Armed::no, ""));
  CHECK(state(kNop, bytes_of({0x91, 0xc3, 0x55, 0x55}), 1).first == Armed::unknown);
  CHECK(state(kNop, {}, 1).first == Armed::unknown);
  const Bytes nop = bytes_of({0x1f, 0x20, 0x03, 0xd5});
  CHECK(state(nop, bytes_of({0xa0, 0x00, 0x20, 0xd4}), 4, EM_AARCH64) == Found(Armed::yes, "brk"));
  CHECK(state(nop, nop, 4, EM_AARCH64) == Found(Armed::no, ""));
}

TEST_CASE("a site that the kernel optimises: trap, call, and what it leaves", "[process]") {
  using Found = std::pair<Armed, std::string>;
  CHECK(state(kNop5, bytes_of({0xcc, 0x1f, 0x44, 0x00, 0x00}), 5) == Found(Armed::yes, "int3"));
  CHECK(state(kNop5, bytes_of({0xe8, 1, 2, 3, 4}), 5) == Found(Armed::yes, "call"));
  CHECK(state(kNop5, bytes_of({0xe9, 1, 2, 3, 4}), 5).first == Armed::unknown);
  // On the first nop, on the second, as a call, and disarmed with the call's operand left.
  Bytes memory = kTwo;
  memory[0] = std::byte{0xcc};
  CHECK(state(kTwo, memory, 11) == Found(Armed::yes, "int3"));
  memory = kTwo;
  memory[1] = std::byte{0xcc};
  CHECK(state(kTwo, memory, 11) == Found(Armed::yes, "int3"));
  memory = bytes_of({0x90, 0x48, 0x8d, 0x64, 0x24, 0x80, 0xe8, 1, 2, 3, 4});
  CHECK(state(kTwo, memory, 11) == Found(Armed::yes, "call"));
  memory = bytes_of({0x90, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0xe8, 1, 2, 3, 4});
  CHECK(state(kTwo, memory, 11) == Found(Armed::no, "was-armed"));
  memory = bytes_of({0x90, 0xe8, 1, 2, 3, 4, 0, 0, 0, 0, 0});
  CHECK(state(kTwo, memory, 11).first == Armed::unknown);
}

TEST_CASE("arguments in the language of uprobe events", "[process]") {
  CHECK(fetch("-4@%edi") == "%di:s32");
  CHECK(fetch("8@%rax") == "%ax:u64");
  CHECK(fetch("1@%al") == "%ax:u8");
  CHECK(fetch("1@%sil") == "%si:u8");
  CHECK(fetch("-2@%r8w") == "%r8:s16");
  CHECK(fetch("8@%r15") == "%r15:u64");
  CHECK(fetch("-8@-16(%rbp)") == "-16(%bp):s64");
  CHECK(fetch("4@(%rsi)") == "+0(%si):u32");
  CHECK(fetch("-4@$-5") == "\\-5:s32");
  CHECK(fetch("-8@[sp, 8]", EM_AARCH64) == "+8(%sp):s64");
  CHECK(fetch("4@w3", EM_AARCH64) == "%x3:u32");
  CHECK(fetch("-4@7", EM_AARCH64) == "\\7:s32");
  for (const char* text : {"1@%ah", "8@(%rax,%rbx,8)", "8@foo(%rip)", "8f@%xmm0", "8f@(%rax)",
                           "16@(%rax)", "%rax", "8@%xmm1", "8@4", "8@(%rax"}) {
    INFO(text);
    CHECK_FALSE(fetch(text));
  }
  CHECK_FALSE(fetch("-4@4(1)", EM_PPC64));
}
