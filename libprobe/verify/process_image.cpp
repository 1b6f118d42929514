#include "libprobe/verify/process_image.hpp"

#include <algorithm>
#include <array>
#include <map>

namespace reprobe {
namespace {

// Linux reads at most 64 KiB of program headers (load_elf_phdrs), which is 2048 of ELFCLASS32.
constexpr std::size_t kMostLoads = 2048;
constexpr std::uint32_t kProtection = PF_R | PF_W | PF_X;

// Address space to which one mapping after the other is added.
class Mapper {
 public:
  void put(const MappedPiece& piece) {
    if (piece.begin >= piece.end) return;
    cut(piece.begin);
    cut(piece.end);
    pieces_.erase(pieces_.lower_bound(piece.begin), pieces_.lower_bound(piece.end));
    pieces_.emplace(piece.begin, piece);
  }

  [[nodiscard]] std::vector<MappedPiece> take() const {
    std::vector<MappedPiece> result;
    for (const auto& [begin, piece] : pieces_) result.push_back(piece);
    return result;
  }

 private:
  // No piece lies on both sides of the address.
  void cut(std::uint64_t address) {
    const auto behind = pieces_.lower_bound(address);
    if (behind == pieces_.begin()) return;
    MappedPiece& first = std::prev(behind)->second;
    if (first.end <= address) return;
    MappedPiece second = first;
    second.offset = first.offset_at(address);
    second.begin = address;
    first.end = address;
    pieces_.emplace(address, second);
  }

  std::map<std::uint64_t, MappedPiece> pieces_;
};

// One segment: the pages of its bytes in the file, then zeros up to the end of its memory.
Result<void> map_segment(const Segment& load, std::uint64_t page, Mapper& memory) {
  const std::uint64_t begin = load.vaddr.value, mask = page - 1;
  const auto file_end = checked_add(begin, load.filesz.value);
  const auto end = checked_add(begin, load.memsz.value);
  const auto last = end ? checked_add(*end, mask) : std::nullopt;
  const bool congruent = ((begin ^ load.offset.value) & mask) == 0;
  const bool in_file = checked_add(load.offset.value, load.filesz.value).has_value();
  if (!file_end || !last || load.filesz > load.memsz || !in_file ||
      (load.filesz.value != 0 && !congruent)) {
    return fail(ErrorCode::refused, "", "a segment that no loader would map");
  }
  const std::uint32_t flags = load.flags & kProtection;
  const std::uint64_t first = begin & ~mask;
  const std::uint64_t file_page = (*file_end + mask) & ~mask, page_end = *last & ~mask;
  const bool zeros = *end > *file_end;
  if (load.filesz.value != 0) {
    const std::uint64_t offset = load.offset.value & ~mask;
    memory.put({first, begin, offset, flags, false});
    memory.put({begin, *file_end, load.offset.value, flags, true});
    memory.put({*file_end, file_page,
                zeros ? std::nullopt : std::optional(load.offset.value + load.filesz.value), flags,
                false});
  } else if (zeros) {
    memory.put({first, begin, std::nullopt, flags, false});
  }
  memory.put({*file_end, *end, std::nullopt, flags, true});
  if (zeros) memory.put({*end, page_end, std::nullopt, flags, false});
  return {};
}

}  // namespace

Result<ProcessImage> ProcessImage::of(const ElfFile& file, std::uint64_t page) {
  Mapper memory;
  std::size_t loads = 0;
  for (const Segment& segment : file.segments()) {
    if (segment.type != PT_LOAD) continue;
    if (++loads > kMostLoads) {
      return fail(ErrorCode::refused, "", "more segments than any kernel reads");
    }
    if (auto done = map_segment(segment, page, memory); !done) {
      return tl::unexpected(done.error());
    }
  }
  ProcessImage image;
  image.pieces_ = memory.take();
  return image;
}

const MappedPiece* ProcessImage::at(std::uint64_t address) const {
  const auto behind = std::ranges::upper_bound(pieces_, address, {}, &MappedPiece::begin);
  if (behind == pieces_.begin()) return nullptr;
  const MappedPiece& piece = *std::prev(behind);
  return address < piece.end ? &piece : nullptr;
}

std::vector<std::uint64_t> page_sizes(const ElfFile& file) {
  std::vector<std::uint64_t> sizes{kSmallestPage};
  const std::uint16_t machine = file.header().machine;
  if (machine == EM_X86_64 || machine == EM_386) return sizes;
  constexpr std::array<std::uint64_t, 2> kLarger{0x4000, 0x10000};
  for (const std::uint64_t page : kLarger) {
    const bool fits = std::ranges::all_of(file.segments(), [&](const Segment& segment) {
      return segment.type != PT_LOAD || segment.align.value % page == 0;
    });
    if (fits) sizes.push_back(page);
  }
  return sizes;
}

}  // namespace reprobe
