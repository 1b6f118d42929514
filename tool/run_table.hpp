// The file that the agents of a program write (libprobe/agent/table.h), as it is read. A program
// may write anything there: counts and indices are checked.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "libprobe/agent/table.h"
#include "libprobe/error.hpp"

namespace reprobe {

struct TracedEvent {
  double nanoseconds{};  // since the table was opened
  std::string_view probe;
  std::uint32_t process{}, thread{};
  std::vector<std::int64_t> arguments;
  std::uint8_t is_signed{};  // bit n: argument n is
};

class RunTable {
 public:
  RunTable() = default;
  RunTable(const RunTable&) = delete;
  RunTable& operator=(const RunTable&) = delete;
  ~RunTable();

  // Makes a file in the folder for temporary files. Error: io.
  [[nodiscard]] Result<void> open();
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] bool has_agents() const;

  // Hits by name: two processes may have made an entry each.
  [[nodiscard]] std::map<std::string, std::uint64_t> counts() const;
  // By time; those that were not written to their end are left out.
  [[nodiscard]] std::vector<TracedEvent> events();
  // Events that found no room.
  [[nodiscard]] std::uint64_t lost() const;

 private:
  struct Instant {
    std::uint64_t counter{};
    double nanoseconds{};
  };
  [[nodiscard]] static Instant instant();
  [[nodiscard]] std::uint32_t entries() const;
  [[nodiscard]] std::string_view name(std::uint32_t entry) const;

  std::string path_;
  reprobe_table* table_{};
  Instant start_;
};

}  // namespace reprobe
