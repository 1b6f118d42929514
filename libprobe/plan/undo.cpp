#include "libprobe/plan/undo.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "libprobe/code/frame_reader.hpp"
#include "libprobe/code/unwind_program.hpp"

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

// Replaced bytes by offset, only where they differ.
class Ranges {
 public:
  void add(std::uint64_t offset, ByteView before) { ranges_[offset] = before; }

  // `after` is as long as `before`; both stand at `offset`.
  void add_differences(std::uint64_t offset, ByteView before, ByteView after) {
    std::size_t at = 0;
    while (at < before.size()) {
      if (before[at] == after[at]) {
        ++at;
        continue;
      }
      std::size_t end = at + 1;  // behind the last difference
      for (std::size_t i = end; i < before.size() && i < end + kJoin; ++i) {
        if (before[i] != after[i]) end = i + 1;
      }
      add(offset + at, before.subspan(at, end - at));
      at = end;
    }
  }

  void write(Bytes& out) const {
    append_uleb128(out, ranges_.size());
    std::uint64_t end = 0;
    for (const auto& [offset, before] : ranges_) {
      append_uleb128(out, offset - end);
      append_uleb128(out, before.size());
      out.insert(out.end(), before.begin(), before.end());
      end = offset + before.size();
    }
  }

 private:
  std::map<std::uint64_t, ByteView> ranges_;
};

// A tool that strips a file moves what it keeps, and the bytes that the record counts are gone.
tl::unexpected<Error> changed_since() {
  return fail(ErrorCode::refused, "", "the file was changed after reprobe wrote it",
              "undo the last rewrite first, and all of them before other tools rewrite the file");
}

tl::unexpected<Error> malformed(std::string_view section) {
  return fail(ErrorCode::malformed, std::string(section), "the record cannot be read");
}

}  // namespace

namespace {

constexpr std::size_t kHeader = 64;  // Elf64_Ehdr; Elf32_Ehdr is shorter

Result<Bytes> write_record(ByteView original, const Ranges& ranges) {
  const auto digest = sha256(original);
  if (!digest) return tl::unexpected(digest.error());
  Bytes record;
  const ByteView magic = as_bytes(kMagic);
  record.insert(record.end(), magic.begin(), magic.end());
  append_uleb128(record, original.size());
  for (const unsigned char byte : *digest) record.push_back(std::byte{byte});
  ranges.write(record);
  return record;
}

}  // namespace

Result<Bytes> make_undo(ByteView original, ByteView result) {
  if (result.size() < original.size()) {
    return fail(ErrorCode::internal, "", "a result that is shorter than its original");
  }
  const std::size_t header = std::min(kHeader, original.size());
  Ranges ranges;
  ranges.add(0, original.first(header));
  ranges.add_differences(header, original.subspan(header),
                         result.first(original.size()).subspan(header));
  return write_record(original, ranges);
}

Result<Bytes> make_undo(const Plan& plan, const ByteSource& input) {
  const auto whole = input.slice(FileOffset{0}, Size{input.size()}, "the file");
  if (!whole) return tl::unexpected(whole.error());
  const std::size_t header = std::min(kHeader, whole->size());

  Ranges ranges;
  ranges.add(0, whole->first(header));
  for (const Edit& edit : plan.edits()) {
    if (edit.offset.value >= header) {
      ranges.add_differences(edit.offset.value, edit.before, edit.after);
    } else if (edit.offset.value + edit.before.size() > header) {
      return fail(ErrorCode::internal, "", "an edit reaches out of the ELF header");
    }
  }
  return write_record(*whole, ranges);
}

namespace {

// The record of a file, taken apart.
struct UndoRecord {
  Plan plan;
  ByteView digest;  // of the original
};

// `record` for the bytes of `source`.
Result<UndoRecord> take_apart(ByteView record, const ByteSource& source, const ElfHeader& header,
                              std::string_view name) {
  FrameCursor cursor(record, VirtAddr{}, header);
  const auto take = [&](std::optional<std::uint64_t> count) -> std::optional<ByteView> {
    const ByteView rest = cursor.rest();
    if (!count || !cursor.skip(*count)) return std::nullopt;
    return rest.first(static_cast<std::size_t>(*count));
  };
  const auto magic = take(kMagic.size());
  if (!magic || as_text(*magic) != kMagic) return malformed(name);
  const auto size = cursor.uleb128();
  const auto digest = take(kDigest);
  auto count = digest ? cursor.uleb128() : std::nullopt;
  if (!size || !count) return malformed(name);
  if (*size > source.size()) return changed_since();

  Plan plan;
  std::uint64_t at = 0;
  for (; *count != 0; --*count) {
    const auto distance = cursor.uleb128();
    const auto before = distance ? take(cursor.uleb128()) : std::nullopt;
    const auto start = before ? checked_add(at, *distance) : std::nullopt;
    if (!start || before->empty() || *start > *size || before->size() > *size - *start) {
      return malformed(name);
    }
    auto done = plan.replace(source, FileOffset{*start}, Bytes(before->begin(), before->end()),
                             "the original's bytes");
    if (!done) return tl::unexpected(done.error());
    at = *start + before->size();
  }
  if (!cursor.rest().empty()) return malformed(name);
  if (auto done = plan.cut(source, Size{*size}); !done) return tl::unexpected(done.error());
  return UndoRecord{std::move(plan), *digest};
}

Result<UndoRecord> read_record(const ElfFile& file, std::string_view name) {
  const Section* section = file.section(name);
  if (section == nullptr) {
    return name == kUndoSection
               ? fail(ErrorCode::refused, "", "the file has no sleds that can be taken out",
                      "only reprobe sled writes " + std::string(kUndoSection))
               : fail(ErrorCode::refused, "", "the file has no section " + std::string(name));
  }
  const auto record = file.contents(*section);
  if (!record) return tl::unexpected(record.error());
  return take_apart(*record, file.source(), file.header(), name);
}

}  // namespace

Result<Plan> read_undo(const ElfFile& file, std::string_view section) {
  auto record = read_record(file, section);
  if (!record) return tl::unexpected(record.error());
  return std::move(record->plan);
}

namespace {

// What the record gives, where that has the SHA-256 that it states.
Result<Plan> checked(Result<UndoRecord> record, const ByteSource& source) {
  if (!record) return tl::unexpected(record.error());
  const auto original = apply(record->plan, source);
  if (!original) return tl::unexpected(original.error());
  const auto actual = sha256(*original);
  if (!actual) return tl::unexpected(actual.error());
  if (!std::ranges::equal(record->digest, *actual, {}, {},
                          [](unsigned char byte) { return std::byte{byte}; })) {
    return changed_since();
  }
  return std::move(record->plan);
}

}  // namespace

Result<Plan> plan_undo(const ElfFile& file, std::string_view section) {
  return checked(read_record(file, section), file.source());
}

Result<Bytes> undo_all(const ElfFile& file) {
  const auto plan = plan_undo(file);
  if (!plan) return tl::unexpected(plan.error());
  auto bytes = apply(*plan, file.source());
  const Section* indexed = file.section(kUndoIndexSection);
  if (!bytes || indexed == nullptr) return bytes;
  const auto record = file.contents(*indexed);
  if (!record) return tl::unexpected(record.error());
  const auto source = borrowed_source(*bytes);
  const auto before =
      checked(take_apart(*record, *source, file.header(), kUndoIndexSection), *source);
  if (!before) return tl::unexpected(before.error());
  return apply(*before, *source);
}

}  // namespace reprobe
