// A mutator that knows where an ELF file keeps its numbers. Flipped bytes seldom get past the
// headers; a field set to zero, to the edge of its range or to what a neighbour holds does.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <vector>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace {

using Random = std::minstd_rand;

std::size_t below(Random& random, std::size_t limit) { return limit == 0 ? 0 : random() % limit; }

// A number in the file.
struct Field {
  std::size_t offset{};
  unsigned width{};
};

// A structure: where its fields start and how wide they are, for ELFCLASS32 and ELFCLASS64.
// Sources: System V ABI (Ehdr, Phdr, Shdr, Sym, Rela) and sys/sdt.h (the note's addresses).
struct Layout {
  std::span<const std::uint8_t> widths32;
  std::span<const std::uint8_t> widths64;
  [[nodiscard]] std::span<const std::uint8_t> widths(bool is64) const {
    return is64 ? widths64 : widths32;
  }
  [[nodiscard]] std::size_t size(bool is64) const {
    std::size_t sum = 0;
    for (const std::uint8_t width : widths(is64)) sum += width;
    return sum;
  }
};

constexpr std::array<std::uint8_t, 13> kEhdr32{2, 2, 4, 4, 4, 4, 4, 2, 2, 2, 2, 2, 2};
constexpr std::array<std::uint8_t, 13> kEhdr64{2, 2, 4, 8, 8, 8, 4, 2, 2, 2, 2, 2, 2};
constexpr std::array<std::uint8_t, 8> kPhdr32{4, 4, 4, 4, 4, 4, 4, 4};
constexpr std::array<std::uint8_t, 8> kPhdr64{4, 4, 8, 8, 8, 8, 8, 8};
constexpr std::array<std::uint8_t, 10> kShdr32{4, 4, 4, 4, 4, 4, 4, 4, 4, 4};
constexpr std::array<std::uint8_t, 10> kShdr64{4, 4, 8, 8, 8, 8, 4, 4, 8, 8};
constexpr std::array<std::uint8_t, 6> kSym32{4, 4, 4, 1, 1, 2};
constexpr std::array<std::uint8_t, 6> kSym64{4, 1, 1, 2, 8, 8};
constexpr std::array<std::uint8_t, 3> kRela32{4, 4, 4};
constexpr std::array<std::uint8_t, 3> kRela64{8, 8, 8};
// Header, "stapsdt\0", location, base, semaphore.
constexpr std::array<std::uint8_t, 8> kNote32{4, 4, 4, 4, 4, 4, 4, 4};
constexpr std::array<std::uint8_t, 8> kNote64{4, 4, 4, 4, 4, 8, 8, 8};

constexpr Layout kEhdr{kEhdr32, kEhdr64}, kPhdr{kPhdr32, kPhdr64}, kShdr{kShdr32, kShdr64},
    kSym{kSym32, kSym64}, kRela{kRela32, kRela64}, kNote{kNote32, kNote64};

constexpr std::size_t kIdent = 16;

class Mutator {
 public:
  Mutator(std::span<std::uint8_t> data, unsigned seed)
      : data_(data), random_(seed), is64_(data[4] == 2), big_(data[5] == 2) {}

  void run() {
    for (std::size_t count = 1 + below(random_, 3); count > 0; --count) {
      switch (below(random_, 8)) {
        case 0:
          copy_entry(sections());
          break;
        case 1:
          copy_note();
          break;
        default:
          poke();
      }
    }
  }

 private:
  struct Table {
    std::size_t offset{};
    std::size_t count{};
    std::size_t stride{};
  };

  [[nodiscard]] bool inside(std::size_t offset, std::size_t size) const {
    return offset <= data_.size() && size <= data_.size() - offset;
  }
  [[nodiscard]] std::uint64_t load(Field field) const {
    if (!inside(field.offset, field.width)) return 0;
    std::uint64_t value = 0;
    for (unsigned i = 0; i < field.width; ++i)
      value = value << 8 | data_[field.offset + (big_ ? i : field.width - 1 - i)];
    return value;
  }
  void store(Field field, std::uint64_t value) {
    if (!inside(field.offset, field.width)) return;
    for (unsigned i = 0; i < field.width; ++i, value >>= 8)
      data_[field.offset + (big_ ? field.width - 1 - i : i)] = static_cast<std::uint8_t>(value);
  }

  [[nodiscard]] Field field_of(const Layout& layout, std::size_t start, std::size_t index) const {
    const auto widths = layout.widths(is64_);
    for (std::size_t i = 0; i < index; ++i) start += widths[i];
    return {start, widths[index]};
  }
  [[nodiscard]] std::uint64_t ehdr(std::size_t index) const {
    return load(field_of(kEhdr, kIdent, index));
  }
  [[nodiscard]] Table sections() const { return {ehdr(5), ehdr(11), kShdr.size(is64_)}; }
  [[nodiscard]] Table segments() const { return {ehdr(4), ehdr(9), kPhdr.size(is64_)}; }
  [[nodiscard]] std::size_t entry(const Table& table) {
    return table.offset + table.stride * below(random_, table.count);
  }

  struct Contents {
    std::size_t offset{};
    std::size_t size{};
    std::uint64_t type{};
  };
  Contents contents(std::size_t header) const {
    return {load(field_of(kShdr, header, 4)), load(field_of(kShdr, header, 5)),
            load(field_of(kShdr, header, 1))};
  }

  // The starts of the notes in a section, as far as the chain can be followed.
  std::vector<std::size_t> notes(const Contents& section) const {
    std::vector<std::size_t> starts;
    const auto padded = [](std::uint64_t size) { return (size + 3) & ~std::uint64_t{3}; };
    for (std::size_t at = section.offset; starts.size() < 4096 && inside(at, 12);) {
      if (at - section.offset >= section.size) break;
      starts.push_back(at);
      at += 12 + padded(load({at, 4})) + padded(load({at + 4, 4}));
    }
    return starts;
  }

  // A field of a structure that stands somewhere in the file.
  Field any_field() {
    const auto of = [&](const Layout& layout, std::size_t start) {
      return field_of(layout, start, below(random_, layout.widths(is64_).size()));
    };
    const std::size_t choice = below(random_, 16);
    if (choice == 0) return of(kEhdr, kIdent);
    if (choice < 3) return of(kPhdr, entry(segments()));
    const std::size_t header = entry(sections());
    if (choice < 7) return of(kShdr, header);
    const Contents section = contents(header);
    const auto in_table = [&](const Layout& layout) {
      const std::size_t stride = layout.size(is64_);
      return of(layout, section.offset + stride * below(random_, section.size / stride));
    };
    switch (section.type) {
      case 2:   // SHT_SYMTAB
      case 11:  // SHT_DYNSYM
        return in_table(kSym);
      case 4:  // SHT_RELA
      case 9:  // SHT_REL
        return in_table(kRela);
      case 7: {  // SHT_NOTE
        const auto starts = notes(section);
        if (!starts.empty()) return of(kNote, starts[below(random_, starts.size())]);
        break;
      }
      default:
        break;
    }
    constexpr std::array<unsigned, 4> kWidths{1, 2, 4, 8};
    return {section.offset + below(random_, section.size), kWidths[below(random_, 4)]};
  }

  std::uint64_t new_value(std::uint64_t old, unsigned width) {
    const std::uint64_t small = below(random_, 33);
    switch (below(random_, 8)) {
      case 0:
        return small;
      case 1:
        return 0 - small;
      case 2:
        return old + small;
      case 3:
        return old - small;
      case 4:
        return old ^ std::uint64_t{1} << below(random_, std::size_t{8} * width);
      case 5:
        return data_.size() - small;
      case 6:
        return (std::uint64_t{1} << (8 * width - 1)) - small;
      default:
        return load(any_field());
    }
  }

  void poke() {
    const Field field = any_field();
    store(field, new_value(load(field), field.width));
  }

  void copy(std::size_t from, std::size_t to, std::size_t size) {
    if (inside(from, size) && inside(to, size))
      std::memmove(data_.data() + to, data_.data() + from, size);
  }

  void copy_entry(const Table& table) { copy(entry(table), entry(table), table.stride); }

  // Over another note, so that lengths and starts no longer agree, or one of equal length.
  void copy_note() {
    const Contents section = contents(entry(sections()));
    if (section.type != 7) return poke();
    const auto starts = notes(section);
    if (starts.size() < 2) return;
    const std::size_t from = below(random_, starts.size() - 1);
    const std::size_t to = starts[below(random_, starts.size())];
    copy(starts[from], to, starts[from + 1] - starts[from]);
  }

  std::span<std::uint8_t> data_;
  Random random_;
  bool is64_;
  bool big_;
};

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  constexpr std::size_t kSmallest = 52;  // Elf32_Ehdr
  if (size < kSmallest || seed % 4 == 0) return LLVMFuzzerMutate(data, size, max_size);
  Mutator({data, size}, seed).run();
  return size;
}
