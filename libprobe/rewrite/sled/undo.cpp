#include "libprobe/rewrite/sled/undo.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <map>

namespace reprobe {
namespace {

constexpr std::string_view kMagic{"reprobe\1", 8};
constexpr std::size_t kDigest = 32;
// Two ranges closer than this cost more than the equal bytes between them.
constexpr std::size_t kJoin = 3;

using Digest = std::array<unsigned char, kDigest>;

Result<Digest> sha256(ByteView bytes) {
  Digest digest{};
  unsigned length = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest.data(), &length, EVP_sha256(), nullptr) != 1 ||
      length != kDigest) {
    return fail(ErrorCode::internal, "", "SHA-256 is not available");
  }
  return digest;
}

void put_uleb(Bytes& out, std::uint64_t value) {
  do {
    const auto low = static_cast<std::uint8_t>(value & 0x7f);
    value >>= 7;
    out.push_back(std::byte{static_cast<std::uint8_t>(value != 0 ? low | 0x80 : low)});
  } while (value != 0);
}

// Takes fields from the front of the record; `failed` once one was cut off.
class Cursor {
 public:
  explicit Cursor(ByteView bytes) : rest_(bytes) {}

  std::uint64_t uleb() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const ByteView byte = take(1);
      if (failed_) return 0;
      const auto bits = std::to_integer<std::uint64_t>(byte[0]);
      value |= (bits & 0x7f) << shift;
      if ((bits & 0x80) == 0) return value;
    }
    failed_ = true;
    return 0;
  }

  ByteView take(std::uint64_t count) {
    if (failed_ || count > rest_.size()) {
      failed_ = true;
      return {};
    }
    const ByteView taken = rest_.first(static_cast<std::size_t>(count));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }

  [[nodiscard]] bool failed() const { return failed_; }
  [[nodiscard]] bool done() const { return rest_.empty(); }

 private:
  ByteView rest_;
  bool failed_{};
};

// Replaced bytes by offset, only where they differ.
class Ranges {
 public:
  void add(std::uint64_t offset, ByteView before) { ranges_[offset] = before; }

  void add_differences(const Edit& edit) {
    const ByteView before = edit.before;
    std::size_t at = 0;
    while (at < before.size()) {
      if (before[at] == edit.after[at]) {
        ++at;
        continue;
      }
      std::size_t end = at + 1;  // behind the last difference
      for (std::size_t i = end; i < before.size() && i < end + kJoin; ++i) {
        if (before[i] != edit.after[i]) end = i + 1;
      }
      add(edit.offset.value + at, before.subspan(at, end - at));
      at = end;
    }
  }

  void write(Bytes& out) const {
    put_uleb(out, ranges_.size());
    std::uint64_t end = 0;
    for (const auto& [offset, before] : ranges_) {
      put_uleb(out, offset - end);
      put_uleb(out, before.size());
      out.insert(out.end(), before.begin(), before.end());
      end = offset + before.size();
    }
  }

 private:
  std::map<std::uint64_t, ByteView> ranges_;
};

tl::unexpected<Error> malformed() {
  return fail(ErrorCode::malformed, std::string(kUndoSection), "the record cannot be read");
}

}  // namespace

Result<Bytes> make_undo(const Plan& plan, const ByteSource& input) {
  const auto whole = input.slice(FileOffset{0}, Size{input.size()}, "the file");
  if (!whole) return tl::unexpected(whole.error());
  const auto digest = sha256(*whole);
  if (!digest) return tl::unexpected(digest.error());
  constexpr std::size_t kHeader = 64;  // Elf64_Ehdr; Elf32_Ehdr is shorter
  const std::size_t header = std::min(kHeader, whole->size());

  Ranges ranges;
  ranges.add(0, whole->first(header));
  for (const Edit& edit : plan.edits()) {
    if (edit.offset.value >= header) {
      ranges.add_differences(edit);
    } else if (edit.offset.value + edit.before.size() > header) {
      return fail(ErrorCode::internal, "", "an edit reaches out of the ELF header");
    }
  }
  Bytes record;
  const ByteView magic = as_bytes(kMagic);
  record.insert(record.end(), magic.begin(), magic.end());
  put_uleb(record, whole->size());
  for (const unsigned char byte : *digest) record.push_back(std::byte{byte});
  ranges.write(record);
  return record;
}

namespace {

// The record of a file, taken apart.
struct UndoRecord {
  Plan plan;
  ByteView digest;  // of the original
};

Result<UndoRecord> read_record(const ElfFile& file) {
  const Section* section = file.section(kUndoSection);
  if (section == nullptr) {
    return fail(ErrorCode::refused, "", "the file has no sleds that can be taken out",
                "only reprobe sled writes " + std::string(kUndoSection));
  }
  const auto record = file.contents(*section);
  if (!record) return tl::unexpected(record.error());
  Cursor cursor(*record);
  const ByteView magic = cursor.take(kMagic.size());
  if (cursor.failed() || as_text(magic) != kMagic) return malformed();
  const Size size{cursor.uleb()};
  const ByteView digest = cursor.take(kDigest);
  if (cursor.failed() || size.value > file.source().size()) return malformed();

  Plan plan;
  std::uint64_t at = 0;
  for (std::uint64_t count = cursor.uleb(); count != 0 && !cursor.failed(); --count) {
    const std::uint64_t distance = cursor.uleb();
    const ByteView before = cursor.take(cursor.uleb());
    const auto start = checked_add(at, distance);
    if (cursor.failed() || before.empty() || !start || *start > size.value ||
        before.size() > size.value - *start) {
      return malformed();
    }
    auto done = plan.replace(file.source(), FileOffset{*start}, Bytes(before.begin(), before.end()),
                             "the original's bytes");
    if (!done) return tl::unexpected(done.error());
    at = *start + before.size();
  }
  if (cursor.failed() || !cursor.done()) return malformed();
  if (auto done = plan.cut(file.source(), size); !done) return tl::unexpected(done.error());
  return UndoRecord{std::move(plan), digest};
}

}  // namespace

Result<Plan> read_undo(const ElfFile& file) {
  auto record = read_record(file);
  if (!record) return tl::unexpected(record.error());
  return std::move(record->plan);
}

Result<Plan> plan_undo(const ElfFile& file) {
  auto record = read_record(file);
  if (!record) return tl::unexpected(record.error());
  const auto original = apply(record->plan, file.source());
  if (!original) return tl::unexpected(original.error());
  const auto actual = sha256(*original);
  if (!actual) return tl::unexpected(actual.error());
  if (!std::ranges::equal(record->digest, *actual, {}, {},
                          [](unsigned char byte) { return std::byte{byte}; })) {
    return fail(ErrorCode::refused, "", "the file was changed after reprobe sled wrote it",
                "take the sleds out before other tools rewrite the file");
  }
  return std::move(record->plan);
}

}  // namespace reprobe
