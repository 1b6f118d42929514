#include "libprobe/rewrite/sled/sled.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "libprobe/audit/redzone.hpp"
#include "libprobe/rewrite/layout.hpp"
#include "libprobe/rewrite/section_table.hpp"
#include "libprobe/rewrite/sled/emit.hpp"
#include "libprobe/rewrite/sled/sled_notes.hpp"
#include "libprobe/rewrite/sled/stack_arguments.hpp"
#include "libprobe/rewrite/sled/undo.hpp"
#include "libprobe/rewrite/unwind.hpp"

namespace reprobe {
namespace {

constexpr Size kRoomAlign{16};
constexpr std::uint64_t kTableAlign = 8;
constexpr Size kWord{8};
constexpr std::string_view kDebugFrame = ".debug_frame";

tl::unexpected<Error> refuse(std::string why, std::string hint) {
  return fail(ErrorCode::refused, "", std::move(why), std::move(hint));
}

// The probes of each site: those that share an instruction share its sled.
using Sites = std::map<VirtAddr, std::vector<const Probe*>>;

Sites sites_of(const ProbeFile& probes) {
  Sites sites;
  for (const Probe& probe : probes.probes) sites[probe.site].push_back(&probe);
  return sites;
}

// Why no sled may be made for it, or "".
std::string why_unwanted(const std::vector<const Probe*>& site, const SledOptions& options) {
  for (const Probe* probe : site) {
    if (options.selected && !options.selected(*probe)) return "not selected";
    if (probe->verdict != Verdict::live) {
      return fmt::format("a note that is {}", to_string(probe->verdict));
    }
  }
  return "";
}

class SledMaker {
 public:
  SledMaker(const ElfFile& file, const ProbeFile& probes, const SledOptions& options,
            const Section& notes, UnwindWriter unwind)
      : file_(file),
        probes_(probes),
        options_(options),
        notes_(notes),
        unwind_(std::move(unwind)),
        sites_(sites_of(probes)) {}

  Result<SledResult> run() {
    auto done = read_debug_frame();
    if (!done) return tl::unexpected(done.error());
    done = choose();
    if (!done) return tl::unexpected(done.error());
    if (result_.sleds.patches.empty()) return std::move(result_);
    done = write();
    if (!done) return tl::unexpected(done.error());
    return std::move(result_);
  }

 private:
  // Which tactic serves which site.
  Result<void> choose() {
    std::vector<VirtAddr> all;
    for (const auto& [site, probes] : sites_) all.push_back(site);
    const auto flows = FlowReader::open(file_, all);
    if (!flows) return tl::unexpected(flows.error());
    SledPlanner planner(rules());
    std::vector<VirtAddr> wanted;
    for (const auto& [site, probes] : sites_) {
      const std::string why = why_unwanted(probes, options_);
      if (why.empty()) {
        wanted.push_back(site);
      } else if (why != "not selected") {
        planner.refuse(site, why);
      }
    }
    for (std::size_t i = 0; i < wanted.size();) {
      const auto flow = flows->function_of(wanted[i]);
      if (!flow) {
        planner.refuse(wanted[i], "in no known function", flow.error().message);
        ++i;
        continue;
      }
      std::size_t next = i + 1;
      while (next < wanted.size() && wanted[next] < flow->end()) ++next;
      planner.add(*flow, std::span(wanted).subspan(i, next - i));
      i = next;
    }
    result_.sleds = std::move(planner).finish();
    return {};
  }

  SledRules rules() {
    SledRules rules;
    rules.kind = options_.kind;
    rules.needs_guard = [this](const FunctionFlow& flow, VirtAddr) {
      if (options_.guard != GuardMode::automatic) return options_.guard == GuardMode::always;
      return may_use_red_zone(file_, flow.function).may_use;
    };
    rules.arguments_fit = [this](VirtAddr site, std::int64_t lower) {
      return std::ranges::all_of(sites_.at(site), [&](const Probe* probe) {
        return correct_stack_arguments(probe->note.arguments, lower).has_value();
      });
    };
    rules.unwinds = [this](const StubPlan& stub) {
      return unwind_.check(stub_pieces(stub, options_.kind)).has_value();
    };
    return rules;
  }

  Result<void> write() {
    auto headers = SectionTable::of(file_);
    if (!headers) return tl::unexpected(headers.error());
    // At any address the stubs have the same pieces; only the gaps between them differ.
    const auto draft = emit_sleds(file_, result_.sleds, options_.kind, first_code());
    if (!draft) return tl::unexpected(draft.error());
    const auto sizes = unwind_.sizes(unwind_stubs(*draft));
    if (!sizes) return tl::unexpected(sizes.error());
    Size wanted = stubs_size(result_.sleds, options_.kind);
    wanted.value += sizes->eh_frame.value + sizes->eh_frame_hdr.value + 3 * kTableAlign;
    const auto room = find_room(
        file_, {.size = wanted, .align = kRoomAlign, .distance = distance_of_base(file_)});
    if (!room) return tl::unexpected(room.error());
    const auto sleds = emit_sleds(file_, result_.sleds, options_.kind, room->address);
    if (!sleds) return tl::unexpected(sleds.error());
    auto done = fill_room(*headers, *room, *sleds, *sizes);
    if (!done) return done;
    base_ = probes_.base.value_or(VirtAddr{0});
    if (base_is_far(*room, sleds->sites.size())) {
      done = move_base(result_.plan, *headers, file_, {room->address, room->offset});
      if (!done) return done;
      base_ = room->address;
    }
    return finish(*headers, *sleds);
  }

  // The base belongs where most sites are (base_section.hpp).
  [[nodiscard]] bool base_is_far(const Room& room, std::size_t moved) const {
    const auto distance = distance_of_base(file_);
    return distance && *distance != room.address.value - room.offset.value &&
           moved > sites_.size() - moved;
  }

  [[nodiscard]] VirtAddr first_code() const { return sites_.begin()->first; }

  static std::vector<Stub> unwind_stubs(const EmittedSleds& sleds) {
    std::vector<Stub> stubs;
    for (const EmittedStub& stub : sleds.stubs) stubs.push_back(stub.unwind);
    return stubs;
  }

  // Stubs, then their unwind tables.
  Result<void> fill_room(SectionTable& headers, const Room& room, const EmittedSleds& sleds,
                         const UnwindSizes& sizes) {
    RoomContents contents;
    contents.bytes = sleds.code;
    std::vector<Section> sections{section(kSledSection, SHF_ALLOC | SHF_EXECINSTR, room.address,
                                          Size{sleds.code.size()}, kRoomAlign)};
    const auto pad = [&] {
      while ((room.address.value + contents.bytes.size()) % kTableAlign != 0) {
        contents.bytes.push_back(std::byte{0xcc});
      }
      return VirtAddr{room.address.value + contents.bytes.size()};
    };
    UnwindPlaces places;
    places.eh_frame = pad();
    places.eh_frame_hdr = VirtAddr{places.eh_frame.value + sizes.eh_frame.value};
    places.debug_frame_offset = old_debug_frame_.size();
    const auto tables = unwind_.build(unwind_stubs(sleds), places);
    if (!tables) return tl::unexpected(tables.error());
    debug_frame_ = tables->debug_frame;
    // Without the program header nobody finds them: a static program whose start-up code registers
    // .eh_frame. An exception never starts in a stub, so that a way out of one is all that is lost.
    if (!unwind_.needs_program_header() && !tables->eh_frame.empty()) {
      table_edit_ = tables->table_edit;
      append(contents.bytes, tables->eh_frame);
      sections.push_back(
          section(".eh_frame.reprobe", SHF_ALLOC, places.eh_frame, sizes.eh_frame, Size{4}));
      if (!tables->eh_frame_hdr.empty()) {
        append(contents.bytes, tables->eh_frame_hdr);
        sections.push_back(section(".eh_frame_hdr.reprobe", SHF_ALLOC, places.eh_frame_hdr,
                                   Size{tables->eh_frame_hdr.size()}, Size{4}));
        contents.eh_frame_hdr = {places.eh_frame_hdr, Size{tables->eh_frame_hdr.size()}};
      }
    }
    contents.sections = sections;
    return place(result_.plan, headers, file_, room, std::move(contents));
  }

  static void append(Bytes& to, const Bytes& bytes) {
    to.insert(to.end(), bytes.begin(), bytes.end());
  }

  static Section section(std::string_view name, std::uint64_t flags, VirtAddr addr, Size size,
                         Size align) {
    Section section;
    section.name = std::string(name);
    section.type = SHT_PROGBITS;
    section.flags = flags;
    section.addr = addr;
    section.size = size;
    section.addralign = align;
    return section;
  }

  // What is not loaded: notes, debuggers' tables, the record; and the bytes that lead to the stubs.
  Result<void> finish(SectionTable& headers, const EmittedSleds& sleds) {
    for (const auto& [at, bytes] : sleds.patches) {
      auto done = replace(at, bytes, "the way to a sled");
      if (!done) return done;
    }
    auto done = table_edit_ ? replace(table_edit_->first, table_edit_->second,
                                      "the stubs among the functions that unwinders find")
                            : Result<void>{};
    if (!done) return done;
    done = move_notes(result_.plan, headers, file_, probes_, notes_, sleds.sites, base_);
    if (!done) return done;
    for (const auto& [site, moved] : sleds.sites) result_.moved.emplace(site, moved.sled);
    done = write_debug_frame(headers);
    if (!done) return done;
    done = follow_with_index(headers);
    if (!done) return done;
    auto record = make_undo(result_.plan, file_.source());
    if (!record) return tl::unexpected(record.error());
    done = append_section(headers, kUndoSection, std::move(*record), Size{1});
    if (!done) return done;
    return headers.write(result_.plan);
  }

  // Before the record is made: it gives the old index back, too.
  Result<void> follow_with_index(const SectionTable& headers) {
    Plan finished = result_.plan;
    if (auto done = headers.write(finished); !done) return done;
    auto index = renew_index(result_.plan, file_, &finished);
    if (!index) return tl::unexpected(index.error());
    result_.index = std::move(*index);
    return {};
  }

  // .debug_frame, which debuggers read: a new section, or the old one with more records.
  Result<void> write_debug_frame(SectionTable& headers) {
    if (debug_frame_.empty()) return {};
    const Section* old = file_.section(kDebugFrame);
    if (old == nullptr) return append_section(headers, kDebugFrame, debug_frame_, kWord);
    Bytes bytes = old_debug_frame_;
    append(bytes, debug_frame_);
    const Size size{bytes.size()};
    const auto offset = result_.plan.append(file_.source(), std::move(bytes), kWord,
                                            ".debug_frame with the stubs'");
    if (!offset) return tl::unexpected(offset.error());
    auto done = headers.set(*old, SectionField::offset, offset->value, "it has grown");
    if (!done) return done;
    return headers.set(*old, SectionField::size, size.value, "it has grown");
  }

  // The records that the file has, up to where new ones can begin.
  Result<void> read_debug_frame() {
    const Section* old = file_.section(kDebugFrame);
    if (old == nullptr) return {};
    if ((old->flags & SHF_COMPRESSED) != 0) {
      return refuse("a compressed .debug_frame", "decompress the debug sections first");
    }
    const auto contents = file_.contents(*old);
    if (!contents) return tl::unexpected(contents.error());
    old_debug_frame_.assign(contents->begin(), contents->end());
    while (old_debug_frame_.size() % kWord.value != 0) old_debug_frame_.push_back(std::byte{0});
    return {};
  }

  Result<void> replace(VirtAddr at, const Bytes& bytes, std::string why) {
    const auto offset = file_.offset_of(at);
    if (!offset) return fail(ErrorCode::internal, "", "an address without bytes in the file");
    return result_.plan.replace(file_.source(), *offset, bytes, std::move(why));
  }

  Result<void> append_section(SectionTable& headers, std::string_view name, Bytes bytes,
                              Size align) {
    Section added = section(name, 0, VirtAddr{}, Size{bytes.size()}, align);
    const auto offset = result_.plan.append(file_.source(), std::move(bytes), align,
                                            fmt::format("{} of the sleds", name));
    if (!offset) return tl::unexpected(offset.error());
    added.offset = *offset;
    const auto index = headers.add(added, "the sections of the sleds");
    if (!index) return tl::unexpected(index.error());
    return {};
  }

  const ElfFile& file_;
  const ProbeFile& probes_;
  const SledOptions& options_;
  const Section& notes_;
  UnwindWriter unwind_;
  Sites sites_;
  VirtAddr base_;  // of all notes
  Bytes old_debug_frame_;
  Bytes debug_frame_;  // of the stubs
  std::optional<std::pair<VirtAddr, Bytes>> table_edit_;
  SledResult result_;
};

}  // namespace

Result<SledResult> plan_sleds(const ElfFile& file, const ProbeFile& probes,
                              const SledOptions& options) {
  if (file.section(kUndoSection) != nullptr) {
    SledResult result;
    result.already = true;
    return result;
  }
  if (probes.debug_file) {
    return refuse("the code is not in this file", "run reprobe sled on the program itself");
  }
  const auto notes = movable_notes(file, probes);
  if (!notes) return tl::unexpected(notes.error());
  auto unwind = UnwindWriter::open(file);
  if (!unwind) return tl::unexpected(unwind.error());
  return SledMaker(file, probes, options, **notes, std::move(*unwind)).run();
}

}  // namespace reprobe
