#include "libprobe/process/loaded.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "libprobe/audit/index_probes.hpp"
#include "libprobe/audit/legacy_probes.hpp"
#include "libprobe/audit/read_probes.hpp"
#include "libprobe/process/file_loader.hpp"
#include "libprobe/process/mapping_groups.hpp"

namespace reprobe {
namespace {

constexpr Size kCounterBytes{2};
constexpr std::size_t kMostPieces = 1000;  // that are searched for a counter that has moved

// A part of a file as a file of its own.
class PartSource final : public ByteSource {
 public:
  PartSource(std::shared_ptr<const ByteSource> whole, std::uint64_t offset)
      : whole_(std::move(whole)), offset_(offset) {}
  std::uint64_t size() const override { return whole_->size() - offset_; }
  Result<ByteView> slice(FileOffset offset, Size size, std::string_view what) const override {
    const auto at = checked_add(offset.value, offset_);
    if (!at) return fail(ErrorCode::unreadable, "", fmt::format("{} lies outside the file", what));
    return whole_->slice(FileOffset{*at}, size, what);
  }

 private:
  std::shared_ptr<const ByteSource> whole_;
  std::uint64_t offset_;
};

ProbeFile probes_of(const ElfFile& file) {
  if (auto indexed = read_index_probes(file)) return std::move(*indexed);
  ProbeFile probes = read_probes(file);
  if (probes.probes.empty()) probes.probes = std::move(read_legacy(file).file.probes);
  return probes;
}

std::vector<std::pair<std::uint64_t, std::size_t>> sites_of(const ElfFile& file,
                                                            const ProbeFile& probes) {
  std::vector<std::pair<std::uint64_t, std::size_t>> sites;
  for (std::size_t i = 0; i < probes.probes.size(); ++i) {
    const Probe& probe = probes.probes[i];
    if (probe.verdict == Verdict::dangling) continue;
    if (const auto offset = file.offset_of(probe.site)) sites.emplace_back(offset->value, i);
  }
  std::ranges::sort(sites);
  return sites;
}

// Where the bytes of an address stand: data may have been moved elsewhere than the code. Nothing
// where they are not mapped.
std::optional<std::uint64_t> address_of_counter(const LoadedElf& loaded, VirtAddr counter) {
  const ElfFile& file = loaded.elf->file;
  const std::uint64_t usual = (counter.value + loaded.bias) & address_mask(file);
  const auto offset = file.offset_of(counter);
  if (!offset) return usual;  // .bss is no part of the file
  const std::uint64_t at = offset->value + loaded.elf_offset;
  const auto shows = [&](const Mapping& piece) { return in_range(at, piece.offset, piece.size()); };
  const Mapping* here = piece_at(*loaded.pieces, usual);
  if (here != nullptr && shows(*here) && usual - here->start + here->offset == at) return usual;
  std::size_t left = kMostPieces;
  for (const Mapping& piece : *loaded.pieces) {
    if (left-- == 0) break;
    if (piece.writable && shows(piece)) return piece.start + (at - piece.offset);
  }
  return std::nullopt;
}

SiteState state_of(const Process& process, const ElfFile& file, const Probe& probe,
                   const LoadedSite& site) {
  const ByteView bytes = file.bytes_at(probe.site, state_size(file.header(), probe.facts.nop));
  const auto memory = process.memory(site.address, Size{bytes.size()});
  if (site.mapped) {
    return memory ? site_state(file.header(), probe.facts.nop, bytes, *memory)
                  : SiteState{Armed::unknown, memory.error().message};
  }
  // Uprobes belong to files: they do not reach a copy of the code.
  return {Armed::unknown,
          memory ? "other memory is in the place of its code" : "its code is not mapped"};
}

}  // namespace

Result<std::shared_ptr<const ByteSource>> MappedFiles::source(const OpenedFile& file) {
  const auto known = sources_.find(file.identity);
  if (known != sources_.end()) return known->second;
  auto source = mapped_source(file);
  if (source) sources_.emplace(file.identity, *source);
  return source;
}

const MappedFiles::Elf& MappedFiles::elf(const FileIdentity& identity, std::uint64_t offset,
                                         const std::shared_ptr<const ByteSource>& source) {
  const auto known = elves_.find({identity, offset});
  if (known != elves_.end()) return known->second;
  const auto part = offset == 0 ? source : std::make_shared<PartSource>(source, offset);
  auto file = ElfFile::open(part);
  Elf result = tl::unexpected(Error{});
  if (!file) {
    result = tl::unexpected(file.error());
  } else {
    ProbeFile probes = probes_of(*file);
    auto sites = sites_of(*file, probes);
    result = std::make_shared<const MappedElf>(
        MappedElf{part, std::move(*file), std::move(probes), std::move(sites)});
  }
  return elves_.emplace(std::pair(identity, offset), std::move(result)).first->second;
}

Result<LoadedFiles> MappedFiles::of(const Process& process) {
  const auto mappings = process.mappings();
  if (!mappings) return tl::unexpected(mappings.error());
  LoadedFiles result;
  result.mapped =
      std::ranges::any_of(*mappings, [](const Mapping& m) { return m.inode != 0 && m.executable; });
  for (const MappingGroup& group : group_mappings(*mappings)) {
    FileLoader(*this, process, group, result).run();
  }
  return result;
}

std::vector<LoadedProbe> read_loaded(const Process& process, const LoadedElf& loaded) {
  const ElfFile& file = loaded.elf->file;
  std::vector<LoadedProbe> result;
  for (const LoadedSite& site : loaded.sites) {
    const Probe& probe = loaded.elf->probes.probes[site.probe];
    LoadedProbe& now = result.emplace_back();
    now.probe = site.probe;
    if (probe.verdict == Verdict::dangling) {
      now.state.how = "dangling";
      continue;
    }
    now.address = site.address;
    now.state = state_of(process, file, probe, site);
    if (probe.semaphore.value == 0) continue;
    const auto address = address_of_counter(loaded, probe.semaphore);
    if (!address) continue;
    now.counter_address = *address;
    if (const auto counter = process.memory(*address, kCounterBytes)) {
      now.counter = narrow<std::uint16_t>(load_uint(*counter, 0, 2, file.header().order));
    }
  }
  return result;
}

}  // namespace reprobe
