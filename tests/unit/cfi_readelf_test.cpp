// binutils' readelf as oracle: the rows of every FDE of this process's libraries and of other
// libraries that most systems have.
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include "catch.hpp"
#include "libprobe/code/cfi_rows.hpp"
#include "mapped_files.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

const std::map<std::uint64_t, std::string> kNames = {
    {0, "rax"},  {1, "rdx"},  {2, "rcx"},  {3, "rbx"},  {4, "rsi"},  {5, "rdi"},
    {6, "rbp"},  {7, "rsp"},  {8, "r8"},   {9, "r9"},   {10, "r10"}, {11, "r11"},
    {12, "r12"}, {13, "r13"}, {14, "r14"}, {15, "r15"}, {16, "ra"}};

std::string with_sign(std::int64_t value) { return (value < 0 ? "" : "+") + std::to_string(value); }

// As readelf prints the rule of one register.
std::string rule_text(const CfiRow& row, const std::string& name) {
  for (const auto& [reg, rule] : row.registers) {
    if (kNames.at(reg) != name) continue;
    switch (rule.kind) {
      case RegisterRule::Kind::undefined:
        return "u";
      case RegisterRule::Kind::same_value:
        return "s";
      case RegisterRule::Kind::offset:
        return "c" + with_sign(rule.value);
      case RegisterRule::Kind::val_offset:
        return "v" + with_sign(rule.value);
      case RegisterRule::Kind::in_register:
        return kNames.at(static_cast<std::uint64_t>(rule.value));
      case RegisterRule::Kind::expression:
        return "exp";
      case RegisterRule::Kind::val_expression:
        return "vexp";
    }
  }
  return "u";
}

std::string cfa_text(const CfiRow& row) {
  return row.cfa.is_expression ? "exp" : kNames.at(row.cfa.reg) + with_sign(row.cfa.offset);
}

struct Compared {
  std::size_t fdes{};
  std::size_t rows{};
};

// Follows readelf's listing of .eh_frame and compares each of its lines with the row we read.
class Comparison {
 public:
  Comparison(const ElfFile& file, const Section& section) : file_(file), section_(section) {}

  void line(const std::string& text) {
    std::istringstream words(text);
    std::vector<std::string> fields;
    for (std::string word; words >> word;) fields.push_back(word);
    if (fields.size() > 3 && fields[3] == "FDE") {
      read(fields[0]);
    } else if (fields.size() > 3 && fields[3] == "CIE") {
      rows_.reset();
    } else if (!fields.empty() && fields[0] == "LOC") {
      columns_.assign(fields.begin() + 2, fields.end());
    } else if (rows_ && fields.size() == columns_.size() + 2 && fields[0].size() == 16) {
      compare(fields);
    }
  }

  const Compared& done() const { return compared_; }

 private:
  void read(const std::string& offset) {
    const std::uint64_t at = std::stoull(offset, nullptr, 16);
    const auto fde = read_fde(file_, VirtAddr{section_.addr.value + at}, cie_);
    CAPTURE(offset);
    REQUIRE(fde);
    auto rows = read_rows(file_, *cie_, *fde);
    REQUIRE(rows);
    rows_ = std::move(*rows);
    end_ = fde->start.value + fde->size.value;
    ++compared_.fdes;
  }

  void compare(const std::vector<std::string>& fields) {
    const std::uint64_t address = std::stoull(fields[0], nullptr, 16);
    if (address >= end_) return;  // clang states the row behind a function's last jump
    const CfiRow& row = rows_->at(VirtAddr{address});
    bool same = cfa_text(row) == fields[1];
    for (std::size_t i = 0; i < columns_.size(); ++i)
      same = same && rule_text(row, columns_[i]) == fields[i + 2];
    if (same) {
      ++compared_.rows;
      return;
    }
    CAPTURE(fields, columns_, cfa_text(row));
    REQUIRE(same);
  }

  const ElfFile& file_;
  const Section& section_;
  std::optional<CfiCie> cie_;
  std::optional<CfiRows> rows_;
  std::uint64_t end_{};
  std::vector<std::string> columns_;
  Compared compared_;
};

std::optional<Compared> compare_file(const std::string& path) {
  const auto source = map_file(path);
  if (!source) return std::nullopt;
  const auto file = ElfFile::open(*source);
  REQUIRE(file);
  const Section* section = file->section(".eh_frame");
  if (section == nullptr || file->header().machine != EM_X86_64) return std::nullopt;
  const std::string command =
      "LC_ALL=C readelf --debug-dump=frames-interp '" + path + "' 2>/dev/null";
  std::FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  Comparison comparison(*file, *section);
  std::string text;
  bool in_section = false;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) {
    if (c != '\n') {
      text.push_back(static_cast<char>(c));
      continue;
    }
    // A separate debug file's .debug_frame may follow.
    if (text.starts_with("Contents of the"))
      in_section = text.find(" .eh_frame ") != std::string::npos;
    if (in_section) comparison.line(text);
    text.clear();
  }
  pclose(pipe);
  return comparison.done();
}

}  // namespace

TEST_CASE("call frame rows of system libraries are those that readelf prints") {
  if (std::system("readelf --version >/dev/null 2>&1") != 0) return;
  std::set<std::string> paths;
  // readelf is another process: its /proc/self is not ours.
  for (const MappedFile& mapped : mapped_files())
    paths.insert(std::filesystem::weakly_canonical(mapped.path).string());
  const std::string folder = "/usr/lib/x86_64-linux-gnu/";
  for (const char* name : {"libm.so.6", "libcrypto.so.3", "libz.so.1", "libzstd.so.1",
                           "libtinfo.so.6", "libelf.so.1", "liblzma.so.5", "libpcre2-8.so.0"})
    paths.insert(folder + name);
  Compared all;
  for (const std::string& path : paths) {
    CAPTURE(path);
    const auto compared = compare_file(path);
    if (!compared) continue;
    all.fdes += compared->fdes;
    all.rows += compared->rows;
  }
  CAPTURE(all.fdes);
  CHECK(all.rows > 5000);
}
