// The parts of the search for libraries that need no linker: words in paths, ld.so.conf, a system
// under a folder, limits. tests/cli/deps_test.py compares whole programs with ld.so.
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "catch.hpp"
#include "elf_builder.hpp"
#include "libprobe/deps/dependencies.hpp"
#include "libprobe/deps/ld_so_conf.hpp"
#include "libprobe/deps/search_paths.hpp"

namespace {

using namespace reprobe;
using namespace reprobe::test;
namespace fs = std::filesystem;

// A folder that is gone after the test.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "reprobe-deps-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = fs::canonical(name);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { fs::remove_all(path_); }

  [[nodiscard]] const fs::path& path() const { return path_; }
  void write(const fs::path& name, std::string_view text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << text;
  }
  void link(const fs::path& target, const fs::path& name) const {
    fs::create_directories((path_ / name).parent_path());
    fs::create_symlink(target, path_ / name);
  }

 private:
  fs::path path_;
};

ElfHeader header_of(std::uint16_t machine, bool is64 = true,
                    std::endian order = std::endian::little, std::uint32_t flags = 0) {
  ElfHeader header;
  header.machine = machine;
  header.is64 = is64;
  header.order = order;
  header.flags = flags;
  return header;
}

// A library that needs others, named by DT_NEEDED, with an optional DT_RUNPATH.
std::string library(const std::vector<std::string>& needed, const std::string& runpath = "",
                    std::uint16_t machine = EM_X86_64) {
  ElfBuilder elf({.machine = machine});
  std::string strings(1, '\0');
  Bytes table;
  const auto entry = [&](std::uint64_t tag, std::uint64_t value) {
    for (const std::uint64_t number : {tag, value}) {
      const Bytes bytes = elf.number(number, 8);
      table.insert(table.end(), bytes.begin(), bytes.end());
    }
  };
  const auto text = [&](const std::string& value) {
    strings += value + '\0';
    return strings.size() - value.size() - 1;
  };
  for (const std::string& name : needed) entry(1, text(name));
  if (!runpath.empty()) entry(29, text(runpath));
  entry(5, 0x1000);
  entry(10, strings.size());
  entry(0, 0);
  const auto first = elf.section(
      {.name = ".dynstr", .flags = SHF_ALLOC, .addr = 0x1000, .bytes = bytes_of(strings)});
  const auto second = elf.section({.name = ".dynamic",
                                   .type = SHT_DYNAMIC,
                                   .flags = SHF_ALLOC,
                                   .addr = 0x1000000,
                                   .bytes = table});
  elf.load(PF_R, first);
  elf.load(PF_R, second);
  elf.load(PF_R, second, 0, PT_DYNAMIC);
  const Bytes file = elf.build();
  return std::string(as_text(file));
}

Dependencies dependencies(const fs::path& program, const Root& root) {
  auto source = map_file(program);
  REQUIRE(source);
  const auto file = ElfFile::open(*source);
  REQUIRE(file);
  return find_dependencies(program, *file, root);
}

using Paths = std::vector<fs::path>;

}  // namespace

TEST_CASE("deps: words in paths") {
  const PathWords words{"/a b/bin", "lib/tuple", std::nullopt};
  const PathWords known{"/a b/bin", "lib64", "x86_64"};
  const Root here;
  struct Case {
    const char* path;
    const char* expected;
  };
  for (const auto& [path, expected] :
       std::vector<Case>{{"/x/y", "/x/y"},
                         {"$ORIGIN", "/a b/bin"},
                         {"$ORIGIN/../l", "/a b/bin/../l"},
                         {"${ORIGIN}x", "/a b/binx"},
                         {"$ORIGINx", "$ORIGINx"},
                         {"$ORIGIN_", "$ORIGIN_"},
                         {"$ORIGIN-1", "/a b/bin-1"},
                         {"${ORIGIN", "${ORIGIN"},
                         {"${ORIGIN/x", "${ORIGIN/x"},
                         {"/usr/$LIB/x", "/usr/lib64/x"},
                         {"$ORIGIN/$LIB/${PLATFORM}", "/a b/bin/lib64/x86_64"},
                         {"$", "$"},
                         {"$$LIB", "$lib64"},
                         {"", "."}}) {
    CAPTURE(path);
    CHECK(expand_path(path, known, here) == fs::path(expected));
  }
  CHECK(expand_path("/x/$PLATFORM", words, here) == std::nullopt);
  CHECK(expand_list("/x:$PLATFORM/y::$LIB", words, here) == Paths{"/x", ".", "lib/tuple"});
  CHECK(expand_list(std::string(1 << 20, ':'), words, here).size() == 4096);
}

TEST_CASE("deps: default folders of each machine") {
  const auto first = [](const ElfHeader& header) { return default_folders(header).front(); };
  constexpr auto kBig = std::endian::big;
  constexpr auto kLittle = std::endian::little;
  CHECK(first(header_of(EM_X86_64)) == "/lib/x86_64-linux-gnu");
  CHECK(first(header_of(EM_X86_64, false)) == "/lib/x86_64-linux-gnux32");
  CHECK(first(header_of(EM_386, false)) == "/lib/i386-linux-gnu");
  CHECK(first(header_of(EM_AARCH64)) == "/lib/aarch64-linux-gnu");
  CHECK(first(header_of(EM_ARM, false, kLittle, 0x5000400)) == "/lib/arm-linux-gnueabihf");
  CHECK(first(header_of(EM_ARM, false, kLittle, 0x5000200)) == "/lib/arm-linux-gnueabi");
  CHECK(first(header_of(EM_RISCV)) == "/lib/riscv64-linux-gnu");
  CHECK(first(header_of(EM_PPC64)) == "/lib/powerpc64le-linux-gnu");
  CHECK(first(header_of(EM_PPC64, true, kBig)) == "/lib/powerpc64-linux-gnu");
  CHECK(first(header_of(EM_S390, true, kBig)) == "/lib/s390x-linux-gnu");
  CHECK(default_folders(header_of(9999, false)) == Paths{"/lib", "/usr/lib"});
  CHECK(default_folders(header_of(9999)) == Paths{"/lib64", "/usr/lib64", "/lib", "/usr/lib"});
}

TEST_CASE("deps: $LIB by the folders that are there") {
  const Folder folder;
  const Root root(folder.path());
  CHECK(lib_word(header_of(EM_X86_64), root) == "lib");
  fs::create_directories(folder.path() / "usr/lib64");
  CHECK(lib_word(header_of(EM_X86_64), root) == "lib64");
  CHECK(lib_word(header_of(EM_386, false), root) == "lib");
  fs::create_directories(folder.path() / "usr/lib/x86_64-linux-gnu");
  CHECK(lib_word(header_of(EM_X86_64), root) == "lib/x86_64-linux-gnu");
}

TEST_CASE("deps: ld.so.conf") {
  const Folder folder;
  const Root root(folder.path());
  CHECK(configured_folders(root).empty());
  folder.write("etc/ld.so.conf",
               "/first\n"
               "# /comment\n"
               "  /second/ # behind\n"
               "include ld.d/*.conf /etc/other.conf missing.conf\n"
               "hwcap 1 nosegneg\n"
               "/first\n"
               "relative\n"
               "/third=libc6\n"
               "/with blank\t\r\n"
               "/last");
  folder.write("etc/ld.d/b.conf", "/b\n");
  folder.write("etc/ld.d/a.conf", "/a\ninclude ../ld.so.conf\ninclude /etc/ld.d/[b].conf\n/a2\n");
  folder.write("etc/ld.d/.c.conf", "/hidden\n");
  folder.write("etc/ld.d/d.txt", "/text\n");
  fs::create_directories(folder.path() / "etc/ld.d/e.conf");
  folder.write("etc/other.conf", "/other\n");
  CHECK(configured_folders(root) ==
        Paths{"/first", "/second", "/a", "/b", "/a2", "/other", "/third", "/with blank", "/last"});
}

TEST_CASE("deps: files that include each other end") {
  const Folder folder;
  folder.write("etc/ld.so.conf", "include /etc/x\n/0\n");
  folder.write("etc/x", "include /etc/y\n/1\n");
  folder.write("etc/y", "include /etc/x /etc/y ld.so.conf\n/2\n");
  CHECK(configured_folders(Root(folder.path())) == Paths{"/2", "/1", "/0"});
}

TEST_CASE("deps: musl's list of folders") {
  const Folder folder;
  const Root root(folder.path());
  CHECK_FALSE(musl_folders("/lib64/ld-linux-x86-64.so.2", root));
  CHECK_FALSE(musl_folders("", root));
  CHECK(musl_folders("/lib/ld-musl-x86_64.so.1", root) ==
        Folders{"/lib", "/usr/local/lib", "/usr/lib"});
  folder.write("etc/ld-musl-x86_64.path", "/one:/two\n/three\n\n");
  CHECK(musl_folders("/lib/ld-musl-x86_64.so.1", root) == Folders{"/one", "/two", "/three"});
}

TEST_CASE("deps: links of a system under a folder stay inside") {
  const Folder folder;
  const Root root(folder.path());
  folder.write("usr/lib/file", "");
  folder.link("/usr/lib", "lib");
  folder.link("../../../../usr/lib/file", "etc/up");
  folder.link("/loop", "loop");
  folder.link("lib/file", "chain");
  CHECK(root.place("/lib/file") == folder.path() / "usr/lib/file");
  CHECK(root.place("/etc/up") == folder.path() / "usr/lib/file");
  CHECK(root.place("/chain") == folder.path() / "usr/lib/file");
  CHECK(root.place("/../../x") == folder.path() / "x");
  CHECK(root.place("/missing/x") == folder.path() / "missing/x");
  CHECK(root.place("/loop").parent_path() == folder.path());
  CHECK(root.place_real(folder.path() / "lib/../lib/file") == folder.path() / "usr/lib/file");
  CHECK(root.place_real("/elsewhere/x") == "/elsewhere/x");
  CHECK(root.place_real(folder.path().string() + "x") == folder.path().string() + "x");
  CHECK(Root("/").place("/lib/x") == "/lib/x");
}

TEST_CASE("deps: each library once, with the first that needs it; the rest is missing") {
  const Folder folder;
  const Root root(folder.path());
  folder.write("app", library({"a", "b", "gone"}));
  folder.write("usr/lib/a", library({"c", "a", "b"}));
  folder.write("usr/lib/b", library({"c", "app", "gone"}));
  folder.write("lib/c", library({"a"}, "$ORIGIN/own"));
  folder.write("lib/own/never", library({}));
  folder.write("lib/app", library({}));
  const auto at = [&](const char* name) { return folder.path() / name; };
  const Dependencies result = dependencies(at("app"), root);
  struct Wanted {
    const char *name, *path, *needed_by;
  };
  const std::vector<Wanted> wanted{{"a", "usr/lib/a", "app"},
                                   {"b", "usr/lib/b", "app"},
                                   {"c", "lib/c", "usr/lib/a"},
                                   {"app", "lib/app", "usr/lib/b"}};
  REQUIRE(result.found.size() == wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    CAPTURE(i);
    CHECK(result.found[i].name == wanted[i].name);
    CHECK(result.found[i].path == at(wanted[i].path));
    CHECK(result.found[i].needed_by == at(wanted[i].needed_by));
  }
  REQUIRE(result.missing.size() == 1);
  CHECK(result.missing[0].name == "gone");
  CHECK(result.missing[0].needed_by == at("app"));
  CHECK(result.missing[0].reason == "not found");
}

TEST_CASE("deps: what stands in the way") {
  const Folder folder;
  const Root root(folder.path());
  folder.write("app", library({"other", "text", "both"}));
  folder.write("lib/other", library({}, "", EM_AARCH64));
  folder.write("lib/text", std::string(200, 'x'));
  folder.write("usr/lib/text", library({}));
  folder.write("lib/both", library({}, "", EM_AARCH64));
  folder.write("usr/lib/both", library({}));
  const Dependencies result = dependencies(folder.path() / "app", root);
  REQUIRE(result.found.size() == 1);
  CHECK(result.found[0].path == folder.path() / "usr/lib/both");
  REQUIRE(result.missing.size() == 2);
  CHECK(result.missing[0].reason ==
        "not found, only " + (folder.path() / "lib/other").string() + ": for another machine");
  CHECK(result.missing[1].reason.starts_with((folder.path() / "lib/text").string() + ": "));
}

TEST_CASE("deps: a file that needs more than can be searched for ends the search") {
  const Folder folder;
  std::vector<std::string> names;
  for (int i = 0; i < 100; ++i) names.push_back("n" + std::to_string(i));
  std::string runpath = "/";
  for (int i = 0; i < 5000; ++i) runpath += ":/" + std::to_string(i);
  folder.write("app", library(names, runpath));
  const Dependencies result = dependencies(folder.path() / "app", Root(folder.path()));
  CHECK(result.found.empty());
  // 4096 folders for each name, of 200000 places in all.
  REQUIRE(result.missing.size() == 49);
  CHECK(result.missing.back().reason.find("expected at most 200000 places") != std::string::npos);
}
