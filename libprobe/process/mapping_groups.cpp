#include "libprobe/process/mapping_groups.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

namespace reprobe {
namespace {

using FileNumber = std::tuple<std::uint64_t, std::uint64_t, std::string_view>;

// Inode numbers of some file systems (FUSE) are not unique: the name tells such files apart.
FileNumber number_of(const Mapping& mapping) {
  return {mapping.device, mapping.inode, mapping.written};
}

struct Building {
  std::vector<Mapping> pieces;
  std::vector<Mapping> copies;
};

// Rows of memory without a gap: executable memory of no file belongs to the files before and
// behind.
class Neighbours {
 public:
  explicit Neighbours(std::map<FileNumber, Building>& groups) : groups_(groups) {}

  void add(const Mapping& mapping) {
    if (mapping.start != end_) end_row();
    end_ = mapping.end;
    if (mapping.inode == 0) {
      if (mapping.executable) pending_.push_back(mapping);
      return;
    }
    const FileNumber number = number_of(mapping);
    give(number);
    if (file_ && *file_ != number) give(*file_);
    pending_.clear();
    file_ = number;
  }

  void end_row() {
    if (file_) give(*file_);
    pending_.clear();
    file_.reset();
  }

 private:
  void give(const FileNumber& number) {
    if (pending_.empty()) return;
    auto& copies = groups_[number].copies;
    copies.insert(copies.end(), pending_.begin(), pending_.end());
  }

  std::map<FileNumber, Building>& groups_;
  std::uint64_t end_{};
  std::vector<Mapping> pending_;
  std::optional<FileNumber> file_;
};

}  // namespace

std::vector<MappingGroup> group_mappings(std::span<const Mapping> mappings) {
  // The kernel writes them in order, but a reader may meet one twice while they change.
  std::vector<const Mapping*> sorted;
  for (const Mapping& mapping : mappings) sorted.push_back(&mapping);
  std::ranges::stable_sort(sorted, {}, &Mapping::start);
  std::map<FileNumber, Building> groups;
  Neighbours neighbours(groups);
  for (const Mapping* mapping : sorted) {
    neighbours.add(*mapping);
    if (mapping->inode != 0) groups[number_of(*mapping)].pieces.push_back(*mapping);
  }
  neighbours.end_row();
  std::vector<MappingGroup> result;
  for (auto& [number, building] : groups) {
    const bool code = std::ranges::any_of(building.pieces, &Mapping::executable);
    if (!code && building.copies.empty()) continue;
    result.push_back({std::make_shared<const std::vector<Mapping>>(std::move(building.pieces)),
                      std::move(building.copies), code});
  }
  std::ranges::sort(result, {}, [](const MappingGroup& g) { return g.pieces->front().start; });
  return result;
}

const Mapping* piece_at(const std::vector<Mapping>& pieces, std::uint64_t address) {
  const auto after = std::ranges::upper_bound(pieces, address, {}, &Mapping::start);
  if (after == pieces.begin()) return nullptr;
  const Mapping& piece = *std::prev(after);
  return address < piece.end ? &piece : nullptr;
}

}  // namespace reprobe
