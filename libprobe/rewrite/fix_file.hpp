// All that `reprobe fix` does to a file: where its notes come from, their repairs, and what follows
// from these.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "libprobe/rewrite/fix.hpp"
#include "libprobe/rewrite/index/renew.hpp"
#include "libprobe/rewrite/site_symbols.hpp"

namespace reprobe {

struct FixRequest {
  // "provider:name" globs: only these probes are removed or rewritten. Empty: all.
  std::vector<std::string> patterns;
  const ElfFile* from_debug{};    // --from-debug: its notes take the place of the file's own
  const LinkObjects* objects{};   // --objects: the inputs of the link
  bool remove_ambiguous{};        // also what is not proven dangling
  bool respell{};                 // arguments in the spelling that most tracers read
  bool upgrade{true};             // notes for records of SystemTap up to 1.3, where there are none
  bool new_build_id{};            // else it is kept
  bool site_symbols{};            // --symbols: PROVIDER__NAME at the sites, in .symtab
  std::vector<std::string> only;  // names of repairs (repair_rules.hpp): these alone
  std::vector<std::string> skip;  // all but these
};

// Where the notes come from that the result has.
enum class NotesFrom { file, debug_file, index, records, other_section };

struct FixedFile {
  FixPlan fix;
  ProbeFile probes;  // as the result has them before its repairs; fix.removed are among them
  NotesFrom from{};
  RenewedIndex index;                      // what became of the file's index
  std::string new_build_id;                // of the result; "" where it is kept
  std::optional<SiteSymbolsPlan> symbols;  // where they were asked for
};

// Errors: usage (a repair that there is not), refused, malformed, internal. What is refused alone
// is in fix.refused; the rest is still planned.
[[nodiscard]] Result<FixedFile> plan_fix_file(const ElfFile& file, const FixRequest& request);

}  // namespace reprobe
