#include "libprobe/rewrite/layout_gap.hpp"

#include <algorithm>

namespace reprobe {
namespace {

// Where the first thing begins that lies, or goes on, behind `from`.
class NextClaim {
 public:
  NextClaim(std::uint64_t from, std::uint64_t file_size) : from_(from), next_(file_size) {}

  void add(std::uint64_t begin, std::uint64_t size) {
    const auto end = checked_add(begin, size);
    if (size == 0 || (end && *end <= from_)) return;
    next_ = std::min(next_, std::max(begin, from_));
  }
  [[nodiscard]] std::uint64_t offset() const { return next_; }

 private:
  std::uint64_t from_;
  std::uint64_t next_;
};

std::uint64_t next_claim(const ElfFile& file, std::uint64_t from) {
  const ElfHeader& header = file.header();
  NextClaim claim(from, file.source().size());
  // The tables were read: their counts are bounded and the products do not wrap.
  claim.add(header.phoff.value, file.segments().size() * header.phentsize);
  claim.add(header.shoff.value, file.sections().size() * header.shentsize);
  for (const Segment& segment : file.segments())
    claim.add(segment.offset.value, segment.filesz.value);
  for (const Section& section : file.sections()) {
    if (section.nobits() || section.type == SHT_NULL) continue;
    claim.add(section.offset.value, section.size.value);
  }
  return claim.offset();
}

// A section may stand in memory behind its segment's end (a wrong p_memsz): its address is taken.
std::uint64_t free_until(const ElfFile& file, const LoadMap& map, std::uint64_t from) {
  std::uint64_t limit = ~std::uint64_t{0};
  for (const Segment& load : map.loads) {
    if (load.vaddr.value >= from) limit = std::min(limit, load.vaddr.value & ~(map.page - 1));
  }
  for (const Section& section : file.sections()) {
    const auto end = checked_add(section.addr.value, section.size.value);
    const bool tls_bss = section.nobits() && (section.flags & SHF_TLS) != 0;
    if (!section.allocated() || tls_bss || section.size.value == 0 || (end && *end <= from))
      continue;
    limit = std::min(limit, std::max(section.addr.value, from));
  }
  return limit;
}

}  // namespace

std::optional<FileOffset> gap_behind(const ElfFile& file, const LoadMap& map, const Segment& load,
                                     Size size, std::uint64_t align) {
  if (load.filesz != load.memsz || load.filesz.value == 0) return std::nullopt;
  const std::uint64_t end = load.offset.value + load.filesz.value;  // checked by load_map()
  const std::uint64_t address_end = load.vaddr.value + load.filesz.value;
  const std::uint64_t padding = (align - address_end % align) % align;
  const std::uint64_t in_file = next_claim(file, end) - end;
  const std::uint64_t free = free_until(file, map, address_end);
  const std::uint64_t in_memory = free - std::min(free, address_end);
  const auto wanted = checked_add(padding, size.value);
  if (!wanted || *wanted > std::min(in_file, in_memory)) return std::nullopt;
  const auto bytes = file.source().slice(FileOffset{end}, Size{*wanted}, "the gap");
  const auto is_zero = [](std::byte b) { return b == std::byte{0}; };
  if (!bytes || !std::ranges::all_of(*bytes, is_zero)) return std::nullopt;
  return FileOffset{end + padding};
}

}  // namespace reprobe
