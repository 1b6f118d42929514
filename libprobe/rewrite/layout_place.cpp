// place(): the bytes of a room, and the headers that load and name them.
#include <fmt/format.h>

#include <algorithm>

#include "libprobe/rewrite/layout.hpp"
#include "libprobe/rewrite/layout_block.hpp"
#include "libprobe/rewrite/layout_headers.hpp"
#include "libprobe/rewrite/layout_loads.hpp"

namespace reprobe {
namespace {

tl::unexpected<Error> internal(std::string why) {
  return fail(ErrorCode::internal, std::string(kSledSection), std::move(why));
}

class Placer {
 public:
  Placer(const ElfFile& file, const Room& room, std::uint64_t size)
      : file_(file),
        room_(room),
        size_(size),
        headers_(file.segments().begin(), file.segments().end()) {}

  Result<void> change_headers(std::uint64_t page) {
    switch (room_.kind) {
      case RoomKind::gap: {
        if (room_.grows >= headers_.size()) return internal("no segment to grow");
        Segment& header = headers_[room_.grows];
        header.filesz = header.memsz = Size{room_.offset.value + size_ - header.offset.value};
        if (!room_.notes) return {};
        if (!headers_grow_in_place(file_)) return internal("the room is not of this file");
        give_up_spare_header();
        add_notes();
        change_phdr();
        return {};
      }
      case RoomKind::spare_header:
        if (!give_up_spare_header()) return internal("the room is not of this file");
        break;
      case RoomKind::grown_headers:
        block_ = block_behind_headers(file_, new_headers(room_));
        if (!block_ || (room_.joined && !notes_at_end(file_, *block_)))
          return internal("the room is not of this file");
        move_block();
        if (room_.joined) join_notes(headers_[*notes_at_end(file_, *block_)]);
        break;
      case RoomKind::moved_headers:
        break;
    }
    add_load(page);
    if (room_.notes && !room_.joined) add_notes();
    change_phdr();
    return {};
  }

  // The sections of what has moved.
  Result<void> change_sections(SectionTable& table) const {
    if (!block_) return {};
    for (const Section& section : file_.sections()) {
      if (section.nobits() || !block_->holds(section.offset, section.size)) continue;
      const std::uint64_t at = kBeforeBlock + section.offset.value - block_->offset.value;
      for (auto done : {table.set(section, SectionField::addr, room_.segment_address.value + at,
                                  "it made place for a program header"),
                        table.set(section, SectionField::offset, room_.segment.value + at,
                                  "it made place for a program header")}) {
        if (!done) return done;
      }
    }
    return {};
  }

  // The symbols of those sections.
  Result<void> change_symbols(Plan& plan) const {
    if (!block_) return {};
    const unsigned word = file_.header().word();
    for (const Section& section : file_.sections()) {
      const auto symbols = file_.symbol_table(section);
      if (section.type != SHT_SYMTAB || !symbols) continue;
      for (std::uint32_t i = 0; i < symbols->size(); ++i) {
        const Symbol symbol = symbols->at(i);
        const std::uint64_t at = symbol.value.value - block_->address.value;
        if (symbol.type == STT_TLS || at >= block_->size.value || !is_in_block(symbol)) continue;
        Bytes value(word);
        store_uint(value, 0, word, file_.header().order,
                   room_.segment_address.value + kBeforeBlock + at);
        // st_value in Elf32_Sym and Elf64_Sym.
        auto done = plan.replace(
            file_.source(), {section.offset.value + symbol.entry_offset + (word == 8 ? 8 : 4)},
            std::move(value), "what the symbol names made place for a program header");
        if (!done) return done;
      }
    }
    return {};
  }

  Result<void> point_eh_frame_hdr(VirtAddr address, Size size) {
    const auto header = std::ranges::find(headers_, PT_GNU_EH_FRAME, &Segment::type);
    if (header == headers_.end())
      return fail(ErrorCode::refused, "", "the file has no PT_GNU_EH_FRAME to point to new tables");
    header->offset = {address.value - room_.address.value + room_.offset.value};
    header->vaddr = header->paddr = address;
    header->filesz = header->memsz = size;
    return {};
  }

  Result<void> write(Plan& plan, Bytes contents) const {
    auto table = encode_headers(file_, headers_);
    if (!table) return tl::unexpected(table.error());
    const bool moved = room_.kind == RoomKind::moved_headers;
    auto done = point_to_headers(plan, file_, moved ? room_.segment : file_.header().phoff,
                                 headers_.size());
    if (!done) return done;
    Bytes first;
    if (moved) {
      first = std::move(*table);
    } else {
      if (block_) {
        const auto bytes = file_.source().slice(block_->offset, block_->size, "what has to move");
        if (!bytes) return tl::unexpected(bytes.error());
        if (!bytes->empty()) first.resize(kBeforeBlock);
        first.insert(first.end(), bytes->begin(), bytes->end());
      }
      done = plan.replace(file_.source(), file_.header().phoff, std::move(*table),
                          "the program headers load the new bytes");
      if (!done) return done;
    }
    if (room_.kind == RoomKind::gap)
      return plan.replace(file_.source(), room_.offset, std::move(contents),
                          "new bytes in the padding behind a segment");
    return append(plan, first, contents);
  }

 private:
  bool give_up_spare_header() {
    const auto spare = spare_header(file_);
    if (!spare) return false;
    if (spare->widened) headers_[spare->widened->index] = *spare->widened;
    headers_.erase(headers_.begin() + static_cast<std::ptrdiff_t>(spare->index));
    return true;
  }

  // The value of a symbol in a section that is not loaded ($d in notes) is no address.
  [[nodiscard]] bool is_in_block(const Symbol& symbol) const {
    const Section* section = symbol.in_section() ? file_.section_at(symbol.shndx) : nullptr;
    return section != nullptr && section->allocated() && !section->nobits() &&
           block_->holds(section->offset, section->size);
  }

  void move_block() {
    for (Segment& header : headers_) {
      if (header.type == PT_LOAD || !block_->holds(header.offset, header.filesz)) continue;
      const std::uint64_t at = kBeforeBlock + header.offset.value - block_->offset.value;
      header.offset = {room_.segment.value + at};
      header.vaddr = header.paddr = {room_.segment_address.value + at};
    }
  }

  void change_phdr() {
    const auto header = std::ranges::find(headers_, PT_PHDR, &Segment::type);
    if (header == headers_.end()) return;
    header->filesz = header->memsz = headers_size(file_, headers_.size());
    if (room_.kind != RoomKind::moved_headers) return;
    header->offset = room_.segment;
    header->vaddr = header->paddr = room_.segment_address;
  }

  Result<void> append(Plan& plan, const Bytes& first, const Bytes& contents) const {
    const std::uint64_t end = file_.source().size();
    if (room_.segment.value < end || room_.offset.value - room_.segment.value < first.size())
      return internal("the room is not of this file");
    Bytes bytes(static_cast<std::size_t>(room_.segment.value - end));
    bytes.insert(bytes.end(), first.begin(), first.end());
    bytes.resize(static_cast<std::size_t>(room_.offset.value - end));
    bytes.insert(bytes.end(), contents.begin(), contents.end());
    const auto at = plan.append(file_.source(), std::move(bytes), Size{1}, "the new segment");
    if (!at) return tl::unexpected(at.error());
    return {};
  }

  // Behind the other PT_LOADs: they stand in ascending order (System V ABI, "Program Header").
  void add_load(std::uint64_t page) {
    Segment load;
    load.type = PT_LOAD;
    load.flags = room_.notes ? PF_R : PF_R | PF_X;
    load.offset = room_.segment;
    load.vaddr = load.paddr = room_.segment_address;
    load.filesz = load.memsz = Size{room_.offset.value + size_ - load.offset.value};
    load.align = Size{page};
    auto behind = headers_.end();
    while (std::prev(behind)->type != PT_LOAD) --behind;  // load_map() found one
    headers_.insert(behind, load);
  }

  void join_notes(Segment& notes) const {
    notes.filesz = notes.memsz = Size{room_.offset.value + size_ - notes.offset.value};
  }

  // Behind the other PT_NOTEs.
  void add_notes() {
    Segment notes;
    notes.type = PT_NOTE;
    notes.flags = PF_R;
    notes.offset = room_.offset;
    notes.vaddr = notes.paddr = room_.address;
    notes.filesz = notes.memsz = Size{size_};
    notes.align = Size{4};
    auto behind = headers_.end();
    while (behind != headers_.begin() && std::prev(behind)->type != PT_NOTE) --behind;
    headers_.insert(behind == headers_.begin() ? headers_.end() : behind, notes);
  }

  const ElfFile& file_;
  const Room& room_;
  std::uint64_t size_;
  std::vector<Segment> headers_;
  std::optional<MovableBlock> block_;
};

bool in_room(const Room& room, std::uint64_t used, VirtAddr address, Size size) {
  const std::uint64_t at = address.value - room.address.value;
  return address >= room.address && at <= used && size.value <= used - at;
}

}  // namespace

Result<void> place(Plan& plan, SectionTable& table, const ElfFile& file, const Room& room,
                   RoomContents contents) {
  const std::uint64_t used = contents.bytes.size();
  if (used == 0 || used > room.size.value) return internal("the contents do not fit the room");
  if (room.kind != RoomKind::gap && !plan.appended().empty())
    return internal("bytes were appended before those of the room");
  const auto map = load_map(file);
  if (!map) return tl::unexpected(map.error());

  Placer placer(file, room, used);
  auto done = placer.change_headers(map->page);
  if (!done) return done;
  for (auto moved : {placer.change_sections(table), placer.change_symbols(plan)}) {
    if (!moved) return moved;
  }
  if (contents.eh_frame_hdr) {
    const auto& [address, size] = *contents.eh_frame_hdr;
    if (!in_room(room, used, address, size)) return internal(".eh_frame_hdr is not in the room");
    done = placer.point_eh_frame_hdr(address, size);
    if (!done) return done;
  }
  for (Section section : contents.sections) {
    if (!in_room(room, used, section.addr, section.size))
      return internal(fmt::format("{} is not in the room", section.name));
    section.offset = {section.addr.value - room.address.value + room.offset.value};
    const auto added = table.add(section, "the new bytes have names");
    if (!added) return tl::unexpected(added.error());
  }
  return placer.write(plan, std::move(contents.bytes));
}

}  // namespace reprobe
