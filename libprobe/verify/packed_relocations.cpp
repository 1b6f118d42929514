#include "libprobe/verify/packed_relocations.hpp"

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "libprobe/elf/dynamic_tables.hpp"

namespace reprobe {
namespace {

// bionic libc/include/elf.h.
constexpr std::uint64_t kAndroidRel = 0x6000000f, kAndroidRelSize = 0x60000010,
                        kAndroidRela = 0x60000011, kAndroidRelaSize = 0x60000012,
                        kAndroidRelr = 0x6fffe000, kAndroidRelrSize = 0x6fffe001;
constexpr std::string_view kMagic = "APS2";
// Flags of a group.
constexpr std::uint64_t kSameInfo = 1, kSameDelta = 2, kSameAddend = 4, kHasAddend = 8;

class PackedReader {
 public:
  explicit PackedReader(ByteView bytes) : bytes_(bytes) {}

  bool read(unsigned word, const std::function<void(VirtAddr)>& f) {
    const std::uint64_t mask = word == 8 ? ~std::uint64_t{0} : 0xffffffffU;
    const std::uint64_t count = number();
    std::uint64_t place = number();
    for (std::uint64_t done = 0; good_ && done < count;) {
      const std::uint64_t size = number(), flags = number();
      const std::uint64_t delta = (flags & kSameDelta) != 0 ? number() : 0;
      if ((flags & kSameInfo) != 0) number();
      const bool addends = (flags & kHasAddend) != 0;
      if (addends && (flags & kSameAddend) != 0) number();
      if (size == 0 || size > count - done) return false;
      for (std::uint64_t i = 0; good_ && i < size; ++i) {
        place += (flags & kSameDelta) != 0 ? delta : number();
        if ((flags & kSameInfo) == 0) number();
        if (addends && (flags & kSameAddend) == 0) number();
        if (!good_) break;
        // A group whose relocations have everything in common takes no bytes of its own.
        if (++places_ > kMostPlaces) return false;
        f(VirtAddr{place & mask});
      }
      done += size;
    }
    return good_;
  }

 private:
  static constexpr std::uint64_t kMostPlaces = std::uint64_t{1} << 26;

  // SLEB128, modulo 2^64.
  std::uint64_t number() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; at_ < bytes_.size(); shift += 7) {
      const auto byte = std::to_integer<std::uint64_t>(bytes_[at_++]);
      if (shift < 64) value |= (byte & 0x7f) << shift;
      if ((byte & 0x80) != 0) continue;
      if ((byte & 0x40) != 0 && shift + 7 < 64) value |= ~std::uint64_t{0} << (shift + 7);
      return value;
    }
    good_ = false;
    return 0;
  }

  ByteView bytes_;
  std::size_t at_{kMagic.size()};
  std::uint64_t places_{};
  bool good_{true};
};

bool read_relr(ByteView bytes, const ElfFile& file, const std::function<void(VirtAddr)>& f) {
  DynamicTable table;
  table.kind = TableKind::relr;
  table.bytes = bytes;
  table.whole = true;
  for_each_relocation(file, table, [&](const DynamicRelocation& entry) { f(entry.place); });
  return true;
}

}  // namespace

bool each_packed_place(const ElfFile& file, const std::function<void(VirtAddr)>& f) {
  const auto entries = dynamic_entries(file);
  // Nothing: the table is not there; no bytes: it lies outside of the file.
  const auto table = [&](std::uint64_t tag, std::uint64_t size) -> std::optional<ByteView> {
    const DynamicEntry* place = dynamic_entry(entries, tag);
    const DynamicEntry* bytes = dynamic_entry(entries, size);
    if (place == nullptr || bytes == nullptr) return std::nullopt;
    const ByteView found = file.bytes_at(VirtAddr{place->value}, Size{bytes->value});
    return found.size() == bytes->value ? found : ByteView{};
  };
  for (const auto& [tag, size] :
       {std::pair(kAndroidRel, kAndroidRelSize), std::pair(kAndroidRela, kAndroidRelaSize)}) {
    const auto packed = table(tag, size);
    if (!packed) continue;
    if (as_text(*packed).substr(0, kMagic.size()) != kMagic) return false;
    if (!PackedReader(*packed).read(file.header().word(), f)) return false;
  }
  const auto relr = table(kAndroidRelr, kAndroidRelrSize);
  return !relr || read_relr(*relr, file, f);
}

}  // namespace reprobe
