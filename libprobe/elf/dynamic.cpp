#include "libprobe/elf/dynamic.hpp"

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "libprobe/elf/dynamic_tables.hpp"
#include "libprobe/elf/limits.hpp"
#include "libprobe/elf/strings.hpp"

namespace reprobe {
namespace {

constexpr std::uint64_t DT_NEEDED = 1, DT_STRTAB = 5, DT_STRSZ = 10, DT_SONAME = 14, DT_RPATH = 15,
                        DT_RUNPATH = 29, DT_FLAGS_1 = 0x6ffffffb;
constexpr std::uint64_t DF_1_NODEFLIB = 0x800;

const Segment* segment_of(const ElfFile& file, std::uint32_t type) {
  const auto found = std::ranges::find(file.segments(), type, &Segment::type);
  return found == file.segments().end() ? nullptr : &*found;
}

// A segment's bytes where the dynamic linker finds them: at its address, cut at the end of the
// PT_LOAD. Nothing is read for a debug file, whose program headers may be those of the program.
ByteView bytes_of(const ElfFile& file, const Segment& segment) {
  return file.bytes_at(segment.vaddr, segment.filesz);
}

class DynamicReader {
 public:
  explicit DynamicReader(const ElfFile& file) : file_(file), budget_(file.source().size()) {}

  DynamicInfo read() {
    DynamicInfo info;
    read_entries(info);
    if (const Segment* segment = segment_of(file_, PT_INTERP)) {
      const StringTable name(bytes_of(file_, *segment));
      info.interpreter = budget_.take(name.at(0).value_or(""));
    }
    return info;
  }

 private:
  void read_entries(DynamicInfo& info) {
    const Segment* segment = segment_of(file_, PT_DYNAMIC);
    if (segment == nullptr) return;
    entries_ = bytes_of(file_, *segment);
    strings_ = StringTable(string_bytes());
    info.soname = string(last(DT_SONAME));
    const auto runpath = last(DT_RUNPATH);
    info.has_runpath = runpath.has_value();
    info.runpath = string(runpath);
    if (!info.has_runpath) info.rpath = string(last(DT_RPATH));
    info.no_default_folders = (last(DT_FLAGS_1).value_or(0) & DF_1_NODEFLIB) != 0;
    std::unordered_set<std::string_view> seen;
    for_each([&](std::uint64_t tag, std::uint64_t value) {
      if (tag != DT_NEEDED) return;
      const auto name = strings_.at(value);
      if (!name || name->empty() || !seen.insert(*name).second) return;
      info.needed.push_back(budget_.take(*name));
    });
  }

  template <typename F>
  void for_each(F&& f) const {
    const unsigned word = file_.header().word();
    const std::endian order = file_.header().order;
    for (std::size_t at = 0; entries_.size() - at >= 2 * std::size_t{word}; at += 2 * word) {
      const std::uint64_t tag = load_uint(entries_, at, word, order);
      if (tag == DT_NULL) return;
      f(tag, load_uint(entries_, at + word, word, order));
    }
  }

  // Of a tag that stands twice the last counts (glibc elf_get_dynamic_info).
  [[nodiscard]] std::optional<std::uint64_t> last(std::uint64_t wanted) const {
    std::optional<std::uint64_t> found;
    for_each([&](std::uint64_t tag, std::uint64_t value) {
      if (tag == wanted) found = value;
    });
    return found;
  }

  // The dynamic linker does not look at DT_STRSZ; without it the table goes on to the segment's
  // end.
  [[nodiscard]] ByteView string_bytes() const {
    const auto table = last(DT_STRTAB);
    if (!table) return {};
    return file_.bytes_at(VirtAddr{*table}, Size{last(DT_STRSZ).value_or(~std::uint64_t{0})});
  }

  [[nodiscard]] std::string string(std::optional<std::uint64_t> offset) {
    return offset ? budget_.take(strings_.at(*offset).value_or("")) : "";
  }

  const ElfFile& file_;
  TextBudget budget_;
  ByteView entries_;
  StringTable strings_;
};

}  // namespace

DynamicInfo read_dynamic(const ElfFile& file) { return DynamicReader(file).read(); }

}  // namespace reprobe
