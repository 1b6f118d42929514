// The mappings of a process, by the file that they show.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "libprobe/process/maps.hpp"

namespace reprobe {

struct MappingGroup {
  std::shared_ptr<const std::vector<Mapping>> pieces;  // of one file, by address
  // Memory of no file that is executable, and stands right before or behind a piece or more of the
  // kind: some programs copy their code to large pages, at the same addresses.
  std::vector<Mapping> copies;
  bool code{};  // a piece is executable
};

// Of the files that are mapped as code, or have such neighbours; by the address of the first piece.
// Linear but for sorting, whatever the order and the number of the mappings.
[[nodiscard]] std::vector<MappingGroup> group_mappings(std::span<const Mapping> mappings);

// The piece that holds the address; nullptr where none does.
[[nodiscard]] const Mapping* piece_at(const std::vector<Mapping>& pieces, std::uint64_t address);

}  // namespace reprobe
