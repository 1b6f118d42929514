#include "libprobe/process/file_loader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "libprobe/process/mapped_file.hpp"

namespace reprobe {
namespace {

constexpr std::uint64_t kPage = 4096;  // the smallest: program headers are rounded to it at least
// A process may map one file tens of thousands of times; each place lists its probes.
constexpr std::size_t kMostPlaces = 1000;
constexpr std::string_view kMagic =
    "\x7f"
    "ELF";

bool begins_elf(const ByteSource& source, std::uint64_t offset) {
  const auto magic = source.slice(FileOffset{offset}, Size{kMagic.size()}, "the ELF magic");
  return magic && as_text(*magic) == kMagic;
}

// The distance of the segment's addresses from its offsets in the file.
std::uint64_t distance(const Segment& segment) {
  return segment.vaddr.value - segment.offset.value;
}

// From the segment that the mapping begins in, else from the first that it shows a part of.
std::optional<std::uint64_t> load_bias(const ElfFile& file, const Mapping& mapping,
                                       std::uint64_t elf_offset, bool code) {
  if (mapping.offset + mapping.size() <= elf_offset) return std::nullopt;
  const std::uint64_t offset = mapping.offset - elf_offset;  // may wrap: before the ELF file
  const auto bias = [&](const Segment& segment) {
    return mapping.start - (offset + distance(segment));
  };
  std::optional<std::uint64_t> shown;
  for (const Segment& segment : file.segments()) {
    if (segment.type != PT_LOAD || (code && (segment.flags & PF_X) == 0)) continue;
    const std::uint64_t begin = segment.offset.value & ~(kPage - 1);
    const std::uint64_t size = segment.filesz.value + (segment.offset.value - begin);
    if (mapping.offset >= elf_offset && in_range(offset, begin, size)) return bias(segment);
    if (!shown && in_range(begin + elf_offset, mapping.offset, mapping.size())) {
      shown = bias(segment);
    }
  }
  return shown;
}

}  // namespace

void FileLoader::give_up(std::string reason) {
  // Data beside other executable memory may be any file.
  if (group_.code) out_.unread.push_back({group_.pieces->front().path, std::move(reason)});
}

void FileLoader::run() {
  auto file = find_mapped(process_, *group_.pieces);
  if (!file) {
    if (file.error().where != kSpecialFile) give_up(file.error().message);
    return;
  }
  file_ = std::move(*file);
  const auto source = files_.source(file_);
  if (!source) return give_up(source.error().message);
  source_ = *source;
  // In a zip the ELF file begins at the nearest piece below that begins with the magic. Data of a
  // program may begin so, too.
  std::optional<Start> nearest;
  for (const Mapping& piece : *group_.pieces) {
    if (begins_elf(*source_, piece.offset)) nearest = piece.offset;
    if (group_.code && !piece.executable) continue;
    const bool loaded = nearest && load(piece, *nearest);
    if (!loaded && nearest != 0 && begins_elf(*source_, 0)) load(piece, 0);
  }
  if (places_.empty() && !unread_.empty()) give_up(unread_);
  if (too_many_) {
    give_up(
        fmt::format("mapped at very many places, of which the first {} are shown", kMostPlaces));
  }
  add_missing();
  if (places_.empty()) return;
  const MappedName name = name_of(process_, group_.pieces->front(), file_);
  for (const auto& key : order_) {
    Place& place = places_.at(key);
    if (!group_.code && !is_copied(place, key.second)) continue;
    LoadedElf loaded{
        name.path, name.deleted, key.first, key.second, std::move(place.elf), group_.pieces, {}};
    for (const auto& [probe, address] : place.sites) {
      loaded.sites.push_back({probe, address, shows(*loaded.elf, key.first, probe, address)});
    }
    out_.files.push_back(std::move(loaded));
  }
}

bool FileLoader::shows(const MappedElf& elf, Start start, std::size_t probe,
                       std::uint64_t address) const {
  const Mapping* piece = piece_at(*group_.pieces, address);
  const auto offset = elf.file.offset_of(elf.probes.probes[probe].site);
  return piece != nullptr && offset &&
         address - piece->start + piece->offset == offset->value + start;
}

bool FileLoader::load(const Mapping& piece, Start start) {
  const auto& elf = files_.elf(file_.identity, start, source_);
  if (!elf) {
    if (unread_.empty()) unread_ = elf.error().message;
    return false;
  }
  const auto bias = load_bias((*elf)->file, piece, start, group_.code);
  if (!bias) return false;
  const std::pair key{start, *bias};
  auto place = places_.find(key);
  if (place == places_.end()) {
    if (places_.size() == kMostPlaces) {
      too_many_ = true;
      return true;
    }
    place = places_.emplace(key, Place{*elf, {}}).first;
    order_.push_back(key);
  }
  if (group_.code) add_sites(place->second, piece, start);
  return true;
}

void FileLoader::add_sites(Place& place, const Mapping& piece, Start start) const {
  const auto& sites = place.elf->sites;
  const std::uint64_t begin = std::max(piece.offset, start) - start;
  for (auto site = std::ranges::lower_bound(sites, begin, {},
                                            [](const auto& entry) { return entry.first; });
       site != sites.end() && in_range(site->first + start, piece.offset, piece.size()); ++site) {
    place.sites.emplace(site->second, piece.start + (site->first + start - piece.offset));
  }
}

void FileLoader::add_missing() {
  std::map<Start, std::vector<bool>> found;
  for (const auto& [key, place] : places_) {
    auto& probes = found[key.first];
    probes.resize(place.elf->probes.probes.size());
    for (const auto& [probe, address] : place.sites) probes[probe] = true;
  }
  std::set<Start> done;
  for (const auto& key : order_) {
    if (!done.insert(key.first).second) continue;
    Place& place = places_.at(key);
    const std::uint64_t mask = place.elf->file.header().is64 ? ~std::uint64_t{0} : 0xffffffffU;
    const auto& probes = place.elf->probes.probes;
    for (std::size_t i = 0; i < probes.size(); ++i) {
      if (!found.at(key.first)[i])
        place.sites.emplace(i, (probes[i].site.value + key.second) & mask);
    }
  }
}

bool FileLoader::is_copied(const Place& place, Bias bias) const {
  const auto& probes = place.elf->probes.probes;
  return std::ranges::any_of(probes, [&](const Probe& probe) {
    return piece_at(group_.copies, probe.site.value + bias) != nullptr;
  });
}

}  // namespace reprobe
