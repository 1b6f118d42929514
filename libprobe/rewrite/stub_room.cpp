#include "libprobe/rewrite/stub_room.hpp"

#include <string>
#include <string_view>

#include "libprobe/notes/stapsdt.hpp"
#include "libprobe/rewrite/sled/sled_notes.hpp"

namespace reprobe {
namespace {

constexpr Size kCodeAlign{16}, kPageAlign{4096}, kFrameAlign{4}, kWord{8};
constexpr std::uint64_t kTableAlign = 8;
// A stub's row may begin further behind the one before than in the draft, which takes a longer
// form, and stubs that have other neighbours may not share an FDE: its head is 16 to 20 bytes long.
constexpr std::uint64_t kMostOfGaps = 8;
constexpr std::byte kTrap{0xcc};
constexpr std::string_view kDebugFrame = ".debug_frame";

void append(Bytes& to, const Bytes& bytes) { to.insert(to.end(), bytes.begin(), bytes.end()); }

Section progbits(std::string_view name, std::uint64_t flags, VirtAddr addr, Size size, Size align) {
  Section section;
  section.name = std::string(name);
  section.type = SHT_PROGBITS;
  section.flags = flags;
  section.addr = addr;
  section.size = size;
  section.addralign = align;
  return section;
}

class StubPlacer {
 public:
  StubPlacer(Plan& plan, SectionTable& headers, const ElfFile& file, UnwindWriter& unwind)
      : plan_(plan), headers_(headers), file_(file), unwind_(unwind) {}

  Result<Room> run(const StubRequest& request) {
    if (auto done = read_debug_frame(); !done) return tl::unexpected(done.error());
    const auto draft = request.at(request.draft);
    if (!draft) return tl::unexpected(draft.error());
    const auto sizes = unwind_.sizes(draft->unwind);
    if (!sizes) return tl::unexpected(sizes.error());
    const Size wanted{request.slots.value + request.most.value + sizes->eh_frame.value +
                      sizes->eh_frame_hdr.value + 3 * kTableAlign +
                      kMostOfGaps * draft->unwind.size()};
    const auto room = find_room(file_, {.size = wanted,
                                        .align = request.slots.value == 0 ? kCodeAlign : kPageAlign,
                                        .distance = distance_of_base(file_)});
    if (!room) return tl::unexpected(room.error());
    const VirtAddr code{room->address.value + request.slots.value};
    const auto stubs = request.at(code);
    if (!stubs) return tl::unexpected(stubs.error());
    // In the draft they stood at other distances.
    const auto exact = unwind_.sizes(stubs->unwind);
    if (!exact) return tl::unexpected(exact.error());
    if (auto done = fill(*room, request.slots, *stubs, *exact); !done)
      return tl::unexpected(done.error());
    if (auto done = write_debug_frame(); !done) return tl::unexpected(done.error());
    Room result = *room;
    result.address = code;
    result.offset.value += request.slots.value;
    return result;
  }

 private:
  Result<void> fill(const Room& room, Size slots, const StubCode& stubs, const UnwindSizes& sizes) {
    RoomContents contents;
    std::vector<Section> sections;
    if (slots.value != 0) {
      contents.bytes.resize(static_cast<std::size_t>(slots.value));
      sections.push_back(progbits(kSlotSection, SHF_ALLOC, room.address, slots, kPageAlign));
    }
    append(contents.bytes, stubs.code);
    sections.push_back(progbits(kSledSection, SHF_ALLOC | SHF_EXECINSTR,
                                VirtAddr{room.address.value + slots.value}, Size{stubs.code.size()},
                                kCodeAlign));
    while ((room.address.value + contents.bytes.size()) % kTableAlign != 0)
      contents.bytes.push_back(kTrap);
    UnwindPlaces places;
    places.eh_frame = VirtAddr{room.address.value + contents.bytes.size()};
    places.eh_frame_hdr = VirtAddr{places.eh_frame.value + sizes.eh_frame.value};
    places.debug_frame_offset = old_debug_frame_.size();
    auto tables = unwind_.build(stubs.unwind, places);
    if (!tables) return tl::unexpected(tables.error());
    debug_frame_ = std::move(tables->debug_frame);
    // Without the program header nobody finds them: a static program whose start-up code registers
    // .eh_frame. No exception starts in a stub, which holds no call.
    if (!unwind_.needs_program_header() && !tables->eh_frame.empty()) {
      append(contents.bytes, tables->eh_frame);
      sections.push_back(
          progbits(".eh_frame.reprobe", SHF_ALLOC, places.eh_frame, sizes.eh_frame, kFrameAlign));
      if (!tables->eh_frame_hdr.empty()) {
        const Size size{tables->eh_frame_hdr.size()};
        append(contents.bytes, tables->eh_frame_hdr);
        sections.push_back(
            progbits(".eh_frame_hdr.reprobe", SHF_ALLOC, places.eh_frame_hdr, size, kFrameAlign));
        contents.eh_frame_hdr = {places.eh_frame_hdr, size};
      }
    } else {
      tables->table_edit.reset();
    }
    contents.sections = sections;
    auto done = place(plan_, headers_, file_, room, std::move(contents));
    if (!done || !tables->table_edit) return done;
    const auto offset = file_.offset_of(tables->table_edit->first);
    if (!offset) return fail(ErrorCode::internal, "", "an unwind table without bytes in the file");
    return plan_.replace(file_.source(), *offset, std::move(tables->table_edit->second),
                         "the stubs among the functions that unwinders find");
  }

  // The records that the file has, up to where new ones can begin.
  Result<void> read_debug_frame() {
    const Section* old = file_.section(kDebugFrame);
    if (old == nullptr) return {};
    if ((old->flags & SHF_COMPRESSED) != 0) {
      return fail(ErrorCode::refused, std::string(kDebugFrame), "a compressed .debug_frame",
                  "decompress the debug sections first");
    }
    const auto contents = file_.contents(*old);
    if (!contents) return tl::unexpected(contents.error());
    old_debug_frame_.assign(contents->begin(), contents->end());
    while (old_debug_frame_.size() % kWord.value != 0) old_debug_frame_.push_back(std::byte{0});
    return {};
  }

  // A new section, or the old one with more records at another place.
  Result<void> write_debug_frame() {
    if (debug_frame_.empty()) return {};
    const Section* old = file_.section(kDebugFrame);
    Bytes bytes = std::move(old_debug_frame_);
    append(bytes, debug_frame_);
    const std::string why = ".debug_frame with the stubs'";
    if (old == nullptr) {
      const auto index =
          headers_.append(plan_, progbits(kDebugFrame, 0, VirtAddr{}, Size{}, kWord),
                          std::move(bytes), why, "debuggers find the stubs' frames there");
      return index ? Result<void>{} : tl::unexpected(index.error());
    }
    const Size size{bytes.size()};
    const auto offset = plan_.append(file_.source(), std::move(bytes), kWord, why);
    if (!offset) return tl::unexpected(offset.error());
    auto done = headers_.set(*old, SectionField::offset, offset->value, "it has grown");
    if (!done) return done;
    return headers_.set(*old, SectionField::size, size.value, "it has grown");
  }

  Plan& plan_;
  SectionTable& headers_;
  const ElfFile& file_;
  UnwindWriter& unwind_;
  Bytes old_debug_frame_;
  Bytes debug_frame_;
};

}  // namespace

Result<Room> place_stubs(Plan& plan, SectionTable& headers, const ElfFile& file,
                         UnwindWriter& unwind, const StubRequest& request) {
  return StubPlacer(plan, headers, file, unwind).run(request);
}

}  // namespace reprobe
