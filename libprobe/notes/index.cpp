#include "libprobe/notes/index.hpp"

#include <fmt/format.h>

#include <limits>
#include <map>

#include "libprobe/elf/limits.hpp"
#include "libprobe/elf/strings.hpp"

namespace reprobe {
namespace {

constexpr std::uint32_t kVersion = 1;
constexpr std::uint64_t kHeaderSize = 28, kEntrySize = 32;
constexpr std::uint32_t kPartial = 1;
constexpr std::uint64_t kHeaderBase = 24;  // offset of the word `base`

// One of each string, the empty one first: its NUL is the first byte.
class StringPool {
 public:
  std::uint64_t add(const std::string& text) {
    const auto [at, added] = places_.try_emplace(text, bytes_.size());
    if (added) {
      bytes_ += text;
      bytes_ += '\0';
    }
    return at->second;
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_{std::string_view("\0", 1)};
  std::map<std::string, std::uint64_t> places_{{"", 0}};
};

constexpr std::uint64_t padded(std::uint64_t size) { return (size + 3) / 4 * 4; }

tl::unexpected<Error> refuse(std::string why) {
  return fail(ErrorCode::refused, std::string(kIndexSection), std::move(why));
}

tl::unexpected<Error> malformed(std::string why) {
  return fail(ErrorCode::malformed, std::string(kIndexSection), std::move(why));
}

class Encoder {
 public:
  Encoder(VirtAddr address, Size size, const ElfHeader& header)
      : address_(address), header_(header), bytes_(static_cast<std::size_t>(size.value)) {}

  void number(std::uint64_t value, unsigned width = 4) {
    store_uint(bytes_, at_, width, header_.order, value);
    at_ += width;
  }
  void text(std::string_view text) {
    for (const char c : text) bytes_[at_++] = static_cast<std::byte>(c);
  }
  void word(VirtAddr target) {
    std::uint64_t distance = target.value - (address_.value + at_);
    if (target.value == 0) return number(0);
    // Addresses of 32-bit files wrap at 2^32: every distance is within reach.
    if (header_.is64) {
      const auto signed_distance = static_cast<std::int64_t>(distance);
      in_reach_ = in_reach_ && signed_distance >= std::numeric_limits<std::int32_t>::min() &&
                  signed_distance <= std::numeric_limits<std::int32_t>::max();
    }
    in_reach_ = in_reach_ && distance != 0;
    number(distance & 0xffffffff);
  }

  [[nodiscard]] bool in_reach() const { return in_reach_; }
  [[nodiscard]] Bytes take() { return std::move(bytes_); }

 private:
  VirtAddr address_;
  const ElfHeader& header_;
  Bytes bytes_;
  std::size_t at_{};
  bool in_reach_{true};
};

StringPool strings_of(const ProbeIndex& index) {
  StringPool strings;
  for (const IndexEntry& entry : index.entries) {
    for (const std::string* text : {&entry.provider, &entry.name, &entry.arguments}) {
      strings.add(*text);
    }
  }
  return strings;
}

std::uint64_t descriptor_size(const ProbeIndex& index, const StringPool& strings) {
  return padded(kHeaderSize + index.entries.size() * kEntrySize + strings.bytes().size());
}

bool has_nul(const IndexEntry& entry) {
  return (entry.provider + entry.name + entry.arguments).find('\0') != std::string::npos;
}

class Decoder {
 public:
  Decoder(ByteView bytes, VirtAddr address, const ElfHeader& header)
      : bytes_(bytes), address_(address), header_(header) {}

  Result<ProbeIndex> run() {
    if (bytes_.size() < kHeaderSize) return malformed("the descriptor is shorter than its header");
    if (number(0) != kVersion) {
      return refuse(
          fmt::format("version of the index; expected {}, found {}", kVersion, number(0)));
    }
    const std::uint64_t header_size = number(4), count = number(8), entry_size = number(12);
    const std::uint64_t strings_size = number(16);
    if (header_size < kHeaderSize || header_size % 4 != 0 || entry_size < kEntrySize ||
        entry_size % 4 != 0) {
      return malformed(
          fmt::format("sizes of header and entries; expected multiples of 4 from {} "
                      "and {} on, found {} and {}",
                      kHeaderSize, kEntrySize, header_size, entry_size));
    }
    // Products and sums of 32-bit numbers do not wrap.
    const std::uint64_t strings_at = header_size + count * entry_size;
    if (strings_size == 0 || strings_at + strings_size > bytes_.size()) {
      return malformed(
          fmt::format("header, {} entries and strings; expected at most {} bytes, "
                      "found {}",
                      count, bytes_.size(), strings_at + strings_size));
    }
    const ByteView text = bytes_.subspan(static_cast<std::size_t>(strings_at),
                                         static_cast<std::size_t>(strings_size));
    if (text.front() != std::byte{0} || text.back() != std::byte{0}) {
      return malformed("strings; expected a NUL at both ends, found none");
    }
    strings_ = StringTable(text);
    ProbeIndex index;
    index.partial = (number(20) & kPartial) != 0;
    index.base = word(kHeaderBase);
    index.entries.reserve(static_cast<std::size_t>(count));
    for (std::uint64_t i = 0; i < count; ++i) {
      auto decoded = entry(header_size + i * entry_size);
      if (!decoded) {
        return malformed(
            fmt::format("entry {}; expected a site and three strings within reach, "
                        "found none",
                        i));
      }
      index.entries.push_back(std::move(*decoded));
    }
    return index;
  }

 private:
  // Every entry can name one long string: together the copies are kept to a multiple of the index.
  static constexpr std::uint64_t kTextPerByte = 64;

  [[nodiscard]] std::uint64_t number(std::uint64_t at, unsigned width = 4) const {
    return load_uint(bytes_, static_cast<std::size_t>(at), width, header_.order);
  }
  [[nodiscard]] VirtAddr word(std::uint64_t at) const {
    const auto distance = static_cast<std::int32_t>(number(at));
    if (distance == 0) return {};
    const std::uint64_t target =
        address_.value + at + static_cast<std::uint64_t>(std::int64_t{distance});
    return {header_.is64 ? target : target & 0xffffffff};
  }
  std::optional<std::string> string(std::uint64_t at) {
    const auto text = strings_.at(number(at));
    if (!text || text->size() > text_left_) return std::nullopt;
    text_left_ -= text->size();
    return std::string(*text);
  }

  std::optional<IndexEntry> entry(std::uint64_t at) {
    IndexEntry entry;
    entry.site = word(at);
    entry.semaphore = word(at + 4);
    entry.slot = word(at + 8);
    entry.resume = word(at + 12);
    const std::uint64_t kind = number(at + 16, 2);
    constexpr auto kLast = static_cast<std::uint64_t>(SiteKind::sled_slot);
    entry.kind = kind <= kLast ? static_cast<SiteKind>(kind) : SiteKind::other;
    entry.size = static_cast<std::uint16_t>(number(at + 18, 2));
    auto provider = string(at + 20), name = string(at + 24), arguments = string(at + 28);
    if (entry.site.value == 0 || !provider || !name || !arguments) return std::nullopt;
    entry.provider = std::move(*provider);
    entry.name = std::move(*name);
    entry.arguments = std::move(*arguments);
    return entry;
  }

  ByteView bytes_;
  VirtAddr address_;
  const ElfHeader& header_;
  StringTable strings_;
  std::uint64_t text_left_{bytes_.size() * kTextPerByte};
};

}  // namespace

std::uint64_t index_size(const ProbeIndex& index) {
  return kIndexDescriptor + descriptor_size(index, strings_of(index));
}

Result<Bytes> encode_index(const ProbeIndex& index, VirtAddr address, Size size,
                           const ElfHeader& header) {
  StringPool strings = strings_of(index);
  const std::uint64_t needed = kIndexDescriptor + descriptor_size(index, strings);
  if (size.value < needed || size.value % 4 != 0 || address.value % 4 != 0) {
    return fail(ErrorCode::internal, std::string(kIndexSection), "no room for the index");
  }
  if (!narrow<std::uint32_t>(size.value)) return refuse("the index would be larger than 4 GiB");

  Encoder out(address, size, header);
  out.number(kIndexOwner.size() + 1);
  out.number(size.value - kIndexDescriptor);
  out.number(kIndexType);
  out.text(kIndexOwner);
  out.text(std::string_view("\0", 1));
  out.number(kVersion);
  out.number(kHeaderSize);
  out.number(index.entries.size());
  out.number(kEntrySize);
  out.number(strings.bytes().size());
  out.number(index.partial ? kPartial : 0);
  out.word(index.base);
  for (const IndexEntry& entry : index.entries) {
    if (entry.site.value == 0 || has_nul(entry)) return refuse("a probe that no index can state");
    for (const VirtAddr target : {entry.site, entry.semaphore, entry.slot, entry.resume}) {
      out.word(target);
    }
    out.number(static_cast<std::uint64_t>(entry.kind), 2);
    out.number(entry.size, 2);
    for (const std::string* text : {&entry.provider, &entry.name, &entry.arguments}) {
      out.number(strings.add(*text));
    }
  }
  out.text(strings.bytes());
  if (!out.in_reach()) return refuse("a probe or its counter lies over 2 GiB from the index");
  return out.take();
}

Result<ProbeIndex> decode_index(ByteView descriptor, VirtAddr address, const ElfHeader& header) {
  return Decoder(descriptor, address, header).run();
}

}  // namespace reprobe
