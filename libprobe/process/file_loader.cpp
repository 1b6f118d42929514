#include "libprobe/process/file_loader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "libprobe/process/mapped_file.hpp"

namespace reprobe {
namespace {

constexpr std::uint64_t kPage = 4096;  // the smallest: program headers are rounded to it at least
// A process may map one file tens of thousands of times; each place lists its probes.
constexpr std::size_t kMostPlaces = 1000;
// Of one kind that a mapping may mean; a hostile file has a segment for each of its bytes.
constexpr std::size_t kMostBiases = 8;
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

// Where the mapping says that the file is loaded, once for each segment that has bytes in it: one
// page of the file may hold the ends of several. Those of code first, of them those that the
// mapping begins in.
struct Biases {
  std::vector<std::uint64_t> all;
  bool of_code{};  // the mapping shows a part of a segment of code
};
Biases possible_biases(const ElfFile& file, const Mapping& mapping, std::uint64_t elf_offset,
                       bool code) {
  Biases biases;
  if (mapping.offset + mapping.size() <= elf_offset) return biases;
  const std::uint64_t offset = mapping.offset - elf_offset;  // may wrap: before the ELF file
  std::array<std::vector<std::uint64_t>, 4> found;           // by how likely it is
  for (const Segment& segment : file.segments()) {
    if (segment.type != PT_LOAD) continue;
    const std::uint64_t begin = segment.offset.value & ~(kPage - 1);
    const std::uint64_t size = segment.filesz.value + (segment.offset.value - begin);
    const bool first = mapping.offset >= elf_offset && in_range(offset, begin, size);
    if (!first && !in_range(begin + elf_offset, mapping.offset, mapping.size())) continue;
    const bool other = code && (segment.flags & PF_X) == 0;
    auto& kind = found.at((other ? 2 : 0) + (first ? 0 : 1));
    if (kind.size() < kMostBiases) kind.push_back(mapping.start - (offset + distance(segment)));
  }
  biases.of_code = !code || !found[0].empty() || !found[1].empty();
  for (const auto& kind : found) biases.all.insert(biases.all.end(), kind.begin(), kind.end());
  return biases;
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
  const auto candidates = find_candidates();
  for (const Candidates& candidate : candidates) {
    for (const Bias bias : candidate.biases) ++votes_[{candidate.start, bias}];
  }
  for (const Candidates& candidate : candidates) {
    if (candidate.of_code && (!group_.code || candidate.piece->executable)) load(candidate);
  }
  for (const Candidates& candidate : candidates) {
    if (group_.code && candidate.piece->executable) add_stray_sites(candidate);
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

// In a zip the ELF file begins at the nearest piece below that begins with the magic. Data of a
// program may begin so, too.
std::vector<FileLoader::Candidates> FileLoader::find_candidates() {
  std::vector<Candidates> result;
  std::optional<Start> nearest;
  for (const Mapping& piece : *group_.pieces) {
    if (begins_elf(*source_, piece.offset)) nearest = piece.offset;
    if (nearest && find_biases(piece, *nearest, result)) continue;
    if (nearest != 0 && begins_elf(*source_, 0)) find_biases(piece, 0, result);
  }
  return result;
}

bool FileLoader::find_biases(const Mapping& piece, Start start, std::vector<Candidates>& out) {
  const auto& elf = files_.elf(file_.identity, start, source_);
  if (!elf) {
    if (unread_.empty()) unread_ = elf.error().message;
    return false;
  }
  auto biases = possible_biases((*elf)->file, piece, start, group_.code);
  if (biases.all.empty()) return false;
  out.push_back({&piece, start, *elf, std::move(biases.all), biases.of_code});
  return true;
}

// The bias that most mappings can have is that of all of one load.
FileLoader::Bias FileLoader::bias_of(const Candidates& candidate) const {
  return *std::ranges::max_element(candidate.biases, {}, [&](Bias bias) {
    return votes_.at({candidate.start, bias});
  });
}

void FileLoader::load(const Candidates& candidate) {
  const std::pair key{candidate.start, bias_of(candidate)};
  auto place = places_.find(key);
  if (place == places_.end()) {
    if (places_.size() == kMostPlaces) {
      too_many_ = true;
      return;
    }
    place = places_.emplace(key, Place{candidate.elf, {}}).first;
    order_.push_back(key);
  }
  if (!group_.code) return;
  each_site(candidate, [&](std::size_t probe, std::uint64_t address) {
    const Probe& known = candidate.elf->probes.probes[probe];
    const std::uint64_t usual = (known.site.value + key.second) & address_mask(candidate.elf->file);
    if (address != usual) return;
    place->second.sites.emplace(probe, address);
    found_.emplace(candidate.start, probe);
  });
}

void FileLoader::add_stray_sites(const Candidates& candidate) {
  const auto place = places_.find({candidate.start, bias_of(candidate)});
  if (place == places_.end()) return;
  each_site(candidate, [&](std::size_t probe, std::uint64_t address) {
    if (!found_.contains({candidate.start, probe})) place->second.sites.emplace(probe, address);
  });
}

template <typename Use>
void FileLoader::each_site(const Candidates& candidate, Use use) const {
  const auto& sites = candidate.elf->sites;
  const Mapping& piece = *candidate.piece;
  const Start start = candidate.start;
  const std::uint64_t begin = std::max(piece.offset, start) - start;
  for (auto site = std::ranges::lower_bound(sites, begin, {},
                                            [](const auto& entry) { return entry.first; });
       site != sites.end() && in_range(site->first + start, piece.offset, piece.size()); ++site) {
    use(site->second, piece.start + (site->first + start - piece.offset));
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
    const std::uint64_t mask = address_mask(place.elf->file);
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
