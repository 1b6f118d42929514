// The repairs of `fix`, by the name of the audit's rule that each mends, and the choice among them.
#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>

#include "libprobe/error.hpp"

namespace reprobe {

namespace repair {
inline constexpr std::string_view dangling = "dangling";
inline constexpr std::string_view ambiguous = "ambiguous";
inline constexpr std::string_view notes_stripped = "notes-stripped";
inline constexpr std::string_view other_section = "other-section";
inline constexpr std::string_view base_missing = "base-missing";
inline constexpr std::string_view base_delta = "base-delta";
inline constexpr std::string_view base_shift = "base-shift";
inline constexpr std::string_view section_order = "section-order";
inline constexpr std::string_view semaphore_section = "semaphore-section";
inline constexpr std::string_view semaphore_dangling = "semaphore-dangling";
inline constexpr std::string_view semaphore_undefined = "semaphore-undefined";
inline constexpr std::string_view semaphore_conflict = "semaphore-conflict";
inline constexpr std::string_view semaphore_relro_page = "semaphore-relro-page";
inline constexpr std::string_view arguments = "arguments";
inline constexpr std::string_view legacy_record = "legacy-record";
}  // namespace repair

struct RepairRule {
  std::string_view name;
  std::string_view what;  // what the repair does, as a half sentence
};

// All of them, in the order in which `--help` and the documentation list them. note-* rules are
// those of notes/rules.hpp that a repair exists for.
[[nodiscard]] std::span<const RepairRule> repair_rules();

// --only and --skip.
class RepairChoice {
 public:
  // Both empty: every repair. Error usage: a name that no repair has; the hint lists them.
  [[nodiscard]] static Result<RepairChoice> of(std::span<const std::string> only,
                                               std::span<const std::string> skip);

  [[nodiscard]] bool wants(std::string_view rule) const;

 private:
  std::set<std::string, std::less<>> only_;
  std::set<std::string, std::less<>> skip_;
};

}  // namespace reprobe
