#include "libprobe/rewrite/sled/sled.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "libprobe/audit/read_probes.hpp"
#include "libprobe/audit/redzone.hpp"
#include "libprobe/code/flag_use.hpp"
#include "libprobe/code/unwind.hpp"
#include "libprobe/notes/index.hpp"
#include "libprobe/plan/compose.hpp"
#include "libprobe/plan/undo.hpp"
#include "libprobe/rewrite/index/relativize.hpp"
#include "libprobe/rewrite/section_table.hpp"
#include "libprobe/rewrite/site_symbols.hpp"
#include "libprobe/rewrite/sled/emit.hpp"
#include "libprobe/rewrite/sled/sled_notes.hpp"
#include "libprobe/rewrite/sled/stack_arguments.hpp"
#include "libprobe/rewrite/sled/stub_symbols.hpp"
#include "libprobe/rewrite/stub_room.hpp"
#include "libprobe/rewrite/undoable.hpp"

namespace reprobe {
namespace {

// Instructions that may be looked at to learn what becomes of the flags, for each byte of a file.
constexpr std::uint64_t kFlagPasses = 4;

// What a file may grow by before its symbol table stays as it is: that has to be copied.
constexpr std::uint64_t kMostGrown = 65536, kMostGrownOfSite = 64;

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
            const Section& notes, UnwindWriter unwind, Bytes record)
      : file_(file),
        probes_(probes),
        options_(options),
        notes_(notes),
        unwind_(std::move(unwind)),
        record_(std::move(record)),
        ranges_(options.kind == SledKind::slot ? CodeRanges::open(file) : std::nullopt),
        flag_budget_(file.source().size() * kFlagPasses),
        sites_(sites_of(probes)) {}

  Result<SledResult> run() {
    auto done = choose();
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
      functions_.resize(planner.stubs(), flow->function.name);
      i = next;
    }
    result_.sleds = std::move(planner).finish();
    return {};
  }

  SledRules rules() {
    SledRules rules;
    rules.kind = options_.kind;
    rules.debuggable = options_.debuggable;
    rules.needs_guard = [this](const FunctionFlow& flow, VirtAddr site) {
      if (options_.guard != GuardMode::automatic) return options_.guard == GuardMode::always;
      // Whoever unwinds from a callee of the tracer would read what the call has overwritten.
      if (unwind_.names_below_stack(site)) return true;
      // Asked for each site, decoded for each function.
      const std::pair function{flow.function.start, flow.end()};
      if (guard_of_ != function) {
        guard_of_ = function;
        guarded_ = may_use_red_zone(file_, flow.function).may_use;
      }
      return guarded_;
    };
    rules.uses_flags = [this](const FunctionFlow& flow, VirtAddr site) {
      return !ranges_ || !only_reads(StatusFlag::none, *ranges_, flow, site, flag_budget_);
    };
    rules.arguments_fit = [this](VirtAddr site, std::int64_t lower) {
      return std::ranges::all_of(sites_.at(site), [&](const Probe* probe) {
        return correct_stack_arguments(probe->note.arguments, lower).has_value();
      });
    };
    rules.unwinds = [this](const StubPlan& stub) {
      return unwind_.check(stub_pieces(stub, options_.kind)).has_value();
    };
    rules.same_row = [this](VirtAddr a, VirtAddr b) { return unwind_.same_row(a, b); };
    return rules;
  }

  Result<void> write() {
    auto headers = SectionTable::of(file_);
    if (!headers) return tl::unexpected(headers.error());
    base_ = probes_.base.value_or(VirtAddr{0});
    if (result_.sleds.stubs.empty()) {  // all of them in place
      const auto in_place = emit_sleds(file_, result_.sleds, options_.kind, first_code());
      if (!in_place) return tl::unexpected(in_place.error());
      return finish(*headers, *in_place);
    }
    // At any address the stubs have the same pieces; only the gaps between them differ.
    const auto stubs_at = [&](VirtAddr at) -> Result<StubCode> {
      auto sleds = emit_sleds(file_, result_.sleds, options_.kind, at);
      if (!sleds) return tl::unexpected(sleds.error());
      return StubCode{std::move(sleds->code), unwind_stubs(*sleds)};
    };
    // The header of the slots, which stand before the code, comes first.
    code_section_ = static_cast<std::uint32_t>(headers->size()) +
                    (options_.kind == SledKind::slot ? 1U : 0U);
    const auto room = place_stubs(result_.plan, *headers, file_, unwind_,
                                  {stubs_at, first_code(), stubs_size(result_.sleds, options_.kind),
                                   slots_size(result_.sleds, options_.kind)});
    if (!room) return tl::unexpected(room.error());
    const auto sleds = emit_sleds(file_, result_.sleds, options_.kind, room->address);
    if (!sleds) return tl::unexpected(sleds.error());
    if (base_is_far(*room, sleds->sites.size())) {
      auto done = move_base(result_.plan, *headers, file_, {room->address, room->offset});
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
    // Their distances are final: the writer has to see that.
    std::ranges::sort(stubs, {}, [](const Stub& stub) { return stub.pieces.front().start; });
    return stubs;
  }

  // What is not loaded: notes, symbols, the record; and the bytes that lead to the stubs.
  Result<void> finish(SectionTable& headers, const EmittedSleds& sleds) {
    for (const auto& [at, bytes] : sleds.patches) {
      auto done = replace(at, bytes, "the way to a sled");
      if (!done) return done;
    }
    auto done = move_notes(result_.plan, headers, file_, probes_, notes_, sleds.sites, base_);
    if (!done) return done;
    for (const auto& [site, moved] : sleds.sites) result_.moved.emplace(site, moved.sled);
    result_.unsafe = sleds.unsafe;
    done = write_symbols(headers, sleds);
    if (!done) return done;
    if (!record_.empty()) {
      Section section;
      section.name = kUndoIndexSection;
      section.type = SHT_PROGBITS;
      section.addralign = Size{1};
      const auto added = headers.append(result_.plan, std::move(section), std::move(record_),
                                        "what takes the index out", "the sections of the sleds");
      if (!added) return tl::unexpected(added.error());
    }
    auto index =
        finish_undoable(result_.plan, headers, file_, kUndoSection,
                        fmt::format("{} of the sleds", kUndoSection), "the sections of the sleds");
    if (!index) return tl::unexpected(index.error());
    result_.index = std::move(*index);
    return {};
  }

  // Where they fit what the file may grow by.
  Result<void> write_symbols(SectionTable& headers, const EmittedSleds& sleds) {
    std::vector<StubSymbol> stubs;
    for (std::size_t i = 0; i < sleds.stubs.size(); ++i) {
      stubs.push_back({sleds.stubs[i].start, sleds.stubs[i].size, functions_[i]});
    }
    std::ranges::sort(stubs, {}, &StubSymbol::start);
    const auto symbols = SymbolsWithStubs::of(file_, result_.plan, stubs, code_section_);
    const std::uint64_t most = kMostGrown + kMostGrownOfSite * sites_.size();
    if (!symbols || grown(headers) + symbols->size().value > most) return {};
    return symbols->append(result_.plan, headers);
  }

  // At most, by everything but the symbols.
  [[nodiscard]] std::uint64_t grown(const SectionTable& headers) const {
    constexpr std::uint64_t kRecord = 256;    // of the undo record and its section, without ranges
    constexpr std::uint64_t kNewNames = 256;  // of sections
    std::uint64_t bytes = result_.plan.appended().size() + kRecord + kNewNames;
    // A range of the record: its distance and its size, and the old bytes.
    for (const Edit& edit : result_.plan.edits()) bytes += 2 * 5 + edit.before.size();
    bytes += (headers.size() + 1) * file_.header().shentsize;
    const Section* names = file_.section_at(static_cast<std::uint32_t>(file_.header().shstrndx));
    return bytes + (names == nullptr ? 0 : names->size.value);
  }

  Result<void> replace(VirtAddr at, const Bytes& bytes, std::string why) {
    const auto offset = file_.offset_of(at);
    if (!offset) return fail(ErrorCode::internal, "", "an address without bytes in the file");
    return result_.plan.replace(file_.source(), *offset, bytes, std::move(why));
  }

  const ElfFile& file_;
  const ProbeFile& probes_;
  const SledOptions& options_;
  const Section& notes_;
  UnwindWriter unwind_;
  Bytes record_;  // what gives the file without its index back; empty: it had one
  std::optional<CodeRanges> ranges_;
  std::uint64_t flag_budget_;
  Sites sites_;
  std::optional<std::pair<VirtAddr, VirtAddr>> guard_of_;  // the function of `guarded_`
  bool guarded_{};
  std::vector<std::string> functions_;  // of each stub, its function's name
  std::uint32_t code_section_{};        // the stubs' section header
  VirtAddr base_;                       // of all notes
  SledResult result_;
};

Result<SledResult> plan_in(const ElfFile& file, const ProbeFile& probes, const SledOptions& options,
                           Bytes record) {
  const auto notes = movable_notes(file, probes);
  if (!notes) return tl::unexpected(notes.error());
  auto unwind = UnwindWriter::open(file);
  if (!unwind) return tl::unexpected(unwind.error());
  return SledMaker(file, probes, options, **notes, std::move(*unwind), std::move(record)).run();
}

// A runtime finds the slots through the index: the file gets one first, and with that the sleds.
Result<SledResult> plan_with_index(const ElfFile& file, const ProbeFile& probes,
                                   const SledOptions& options) {
  const auto index = plan_relativize(file, probes, {});
  if (!index) return tl::unexpected(index.error());
  auto bytes = apply(index->plan, file.source());
  auto record = make_undo(index->plan, file.source());
  if (!bytes || !record) return tl::unexpected(!bytes ? bytes.error() : record.error());
  const auto indexed = ElfFile::open(memory_source(std::move(*bytes)));
  if (!indexed) return tl::unexpected(indexed.error());
  auto result = plan_in(*indexed, read_probes(*indexed), options, std::move(*record));
  if (!result || result->plan.empty()) return result;
  const auto output = apply(result->plan, indexed->source());
  if (!output) return tl::unexpected(output.error());
  auto plan = plan_output(file.source(), *output, "sleds, their slots, and the index of these");
  if (!plan) return tl::unexpected(plan.error());
  result->plan = std::move(*plan);
  return result;
}

}  // namespace

Result<SledResult> plan_sleds(const ElfFile& file, const ProbeFile& probes,
                              const SledOptions& options) {
  if (file.section(kUndoSection) != nullptr) {
    SledResult result;
    result.already = true;
    return result;
  }
  if (file.section(kGuardsAtSite) != nullptr) {
    return refuse("code checks the sites of its probes, which must stay where they are",
                  "reprobe guards --to restore comes first");
  }
  if (names_sites(file)) {
    return refuse("symbols name the sites of its probes, which would move",
                  "reprobe fix --undo-symbols comes first, --symbols after the sleds");
  }
  if (file.header().type == ET_REL) {
    return refuse("a relocatable object", "sleds are made after the link");
  }
  if (probes.debug_file) {
    return refuse("the code is not in this file", "run reprobe sled on the program itself");
  }
  if (options.kind == SledKind::slot && !find_index(file))
    return plan_with_index(file, probes, options);
  return plan_in(file, probes, options, {});
}

}  // namespace reprobe
